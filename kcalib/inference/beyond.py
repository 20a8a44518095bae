"""The p-value where the statistic is above all draws: what is known below 1 / (R + 1), and from what.

The exact and the features' test ask `beyond_draws`: the exact one first without tilted draws, which it makes where the
law says nothing. In this order it takes

1. tilted draws (`tail`), if there are any, exact at every level, where they know the p-value well;
2. the limit law, a mixture of chi-square variables, where nothing that was drawn contradicts it: the draws' variance
   and upper quantiles, the tail that tilted draws estimate, and enough events. Of rare events it is wrong by orders of
   magnitude: at 1e-5 by a factor 20 of 10 events, 1.6 of 100, measured;
3. tilted draws as an upper limit;
4. 1 / (R + 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy

from kcalib.inference.quadratic import NullLaw
from kcalib.inference.tail import Tail
from kcalib.laws import ChiSquareMixture

KNOWN = 0.35  # relative error up to which tilted draws are taken by themselves
FEWEST_DRAWS = 99
LEVELS = (0.5, 0.1, 0.02)  # of the law, beyond which draws are counted
RISK = 1e-3  # that a draws' count, or their variance, is found to contradict a law that is right
EVENTS, EVENTS_WITH_TAIL = 2000, 100  # without tilted draws that agree, and with them
TAIL_LEVELS = (1e-3, 1e-4, 1e-5)
TAIL_FACTOR, TAIL_ERROR = 1.25, 0.25  # of tilted draws to the law, and the error with which they must know it


def beyond_draws(
    null_law: NullLaw,
    statistic: float,
    draws: np.ndarray,
    *,
    events: Callable[[], float],
    law: Callable[[], ChiSquareMixture | None],
    tail: Tail | None = None,
) -> NullLaw:
    """Return `null_law` where the statistic is not above all draws; else with what is known of the tail.

    The level stays: below the smallest p-value of draws both p-values must be. `statistic`, draws, those of the tail
    and the law less its mean are in the same units; `events` is about how many the law rests on.
    """
    assert null_law.n_resamples is not None
    if null_law.pvalue != 1 / (1 + null_law.n_resamples):
        return null_law
    if tail is not None and tail.own_share < 0.5 and tail.relative_error <= KNOWN:
        return _with(null_law, tail.log_pvalue, "tilted draws", tail.description)
    limit = law() if len(draws) >= FEWEST_DRAWS and events() >= (EVENTS if tail is None else EVENTS_WITH_TAIL) else None
    if limit is not None and agree(draws, limit):
        log_pvalue = float(limit.logsf(statistic + limit.mean))
        if tail is None or (log_pvalue < tail.log_pvalue and tail_agrees(tail, limit, needs_all=events() < EVENTS)):
            return _with(
                null_law, log_pvalue, "law", "beyond them the limit law of many samples, which they do not contradict"
            )
    if tail is None:
        return null_law
    return _with(null_law, tail.log_pvalue, "tilted draws", tail.description)


def _with(null_law: NullLaw, log_pvalue: float, source: str, explanation: str) -> NullLaw:
    if log_pvalue >= null_law.log_pvalue:
        return null_law
    description = f"{null_law.description}; {explanation}"
    return replace(null_law, log_pvalue=log_pvalue, pvalue=None, pvalue_from=source, description=description)


def agree(draws: np.ndarray, law: ChiSquareMixture) -> bool:
    """Whether the draws could be the law's, less its mean, by their variance and their upper quantiles."""
    count = len(draws)
    spread = math.sqrt((law.kurtosis + 2) / count) * -float(scipy.special.ndtri(RISK / 2))
    if abs(float(np.mean(draws**2)) / law.var - 1) > spread:
        return False
    for level in LEVELS:
        low, high = scipy.special.bdtrik([RISK / 2, 1 - RISK / 2], count, level)
        beyond = int(np.sum(draws > law.isf(level) - law.mean))
        if not math.floor(low) <= beyond <= math.ceil(high):
            return False
    return True


def tail_agrees(tail: Tail, law: ChiSquareMixture, *, needs_all: bool) -> bool:
    """Whether tilted draws agree with the law's tail at the levels that they know; `needs_all`: at all levels."""
    for level in TAIL_LEVELS:
        estimate, error = tail.estimate(float(law.isf(level) - law.mean))
        if error > TAIL_ERROR:
            if needs_all:
                return False
        elif abs(math.log(estimate / level)) > math.log(TAIL_FACTOR) + 2 * error:
            return False
    return True
