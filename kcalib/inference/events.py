"""Decide from the predictions whether there are enough events for an approximate null distribution, and warn if not.

`Task.effective_events` is about the expected number of label events that determine the statistic: n for diffuse
predictions, few for confident predictions and rare events. Approximations as a sum of many terms need many. The number
that each one needs was measured for calibrated predictions that are diffuse, saturated, rare, tied and few, at the
levels 0.01, 0.05 and 0.1: with fewer events some reject too often.
"""

from __future__ import annotations

from kcalib._backend.warnings import AntiConservativeWarning, warn
from kcalib.inference.task import Task

# Over all pairs, with conditional variances, and with those of the observed residuals.
ALL_PAIRS, ALL_PAIRS_OF_RESIDUALS = 20, 50
# Over all pairs, with a spectrum from some of the samples.
SAMPLED = 50
# Blocks have few events each, and the mean of few skewed numbers is skewed.
BLOCKS, BLOCKS_OF_RESIDUALS, SECOND_MOMENT = 30, 80, 500
# With many classes few pairs of samples agree, and these dominate the sum. Thirty pairs of 100 classes have .15 to .6,
# and reject .13 at .1; blocks with at least .85 keep their level.
PAIRS = 0.7
# The chi-square distribution uses all directions, also those with little variance because locations are near.
LOCATIONS, LOCATIONS_OF_RESIDUALS = 500, 20_000


BY_DRAWS = "method='exact' and method='features' are valid for any"


def warn_if_few(task: Task, test: str, needed: int) -> bool:
    """Warn if the predictions leave fewer events uncertain than the test needs, and return whether they do."""
    return warn_of(task.effective_events, test, needed, BY_DRAWS)


def warn_of(events: float, test: str, needed: int, remedy: str) -> bool:
    """Warn if the events are fewer than needed."""
    few = events < needed
    if few:
        warn(
            f"{test} may reject calibrated models too often here: the predictions leave about {events:.2g} uncertain "
            f"events, and it needs {needed}; {remedy}",
            AntiConservativeWarning,
        )
    return few


def warn_if_pairs_are_few(pairs: float, test: str) -> None:
    """Warn if blocks have fewer pairs that agree, given the predictions, than their null distribution needs."""
    if pairs < PAIRS:
        warn(
            f"{test} may reject calibrated models too often here: given the predictions its blocks have about "
            f"{pairs:.2g} pairs of samples that agree, and it needs {PAIRS:g}; take larger blocks by "
            f"method='block'; {BY_DRAWS}",
            AntiConservativeWarning,
        )
