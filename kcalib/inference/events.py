"""Are there events enough for a law that is not that of draws? Decided from the predictions alone, and said.

`Task.effective_events` is about the expected number of label events that the statistic rests on: n for diffuse
predictions, few for confident ones and for rare events. A law that takes the statistic for a sum of many of them holds
where they are many. How many each needs was measured, on calibrated predictions that are diffuse, saturated, rare, tied
and few, at the levels 0.01, 0.05 and 0.1: with fewer some reject too often.
"""

from __future__ import annotations

from kcalib._backend.warnings import AntiConservativeWarning, warn
from kcalib.inference.task import Task

# Of all pairs, with variances given the predictions, and with those of the residuals at hand.
ALL_PAIRS, ALL_PAIRS_OF_RESIDUALS = 20, 50
# Of all pairs, with a spectrum from some of the samples.
SAMPLED = 50
# Blocks have few events each, and the mean of few skew numbers is skew.
BLOCKS, BLOCKS_OF_RESIDUALS, SECOND_MOMENT = 30, 80, 500
# With many classes pairs of samples seldom agree, although each sample is an event: a sum over few of them is theirs.
# Thirty pairs of 100 classes have .15 to .6, and reject .13 at .1; blocks of theirs, from .85 on, hold their level.
PAIRS = 0.7
# The chi-square law looks in all directions, those where locations near each other hardly vary included.
LOCATIONS, LOCATIONS_OF_RESIDUALS = 500, 20_000


BY_DRAWS = "method='exact' holds for any, and so does method='features'"


def warn_if_few(task: Task, test: str, needed: int) -> bool:
    """Warn where the predictions leave fewer events open than the law of the test needs, and say whether they do."""
    return warn_of(task.effective_events, test, needed, BY_DRAWS)


def warn_of(events: float, test: str, needed: int, remedy: str) -> bool:
    """Warn if the events are fewer than needed."""
    few = events < needed
    if few:
        warn(
            f"{test} may reject calibrated models too often here: the predictions leave about {events:.2g} events "
            f"open, and its law wants {needed}; {remedy}",
            AntiConservativeWarning,
        )
    return few


def warn_if_pairs_are_few(pairs: float, test: str) -> None:
    """Warn where blocks have fewer pairs that agree, given the predictions, than their law needs."""
    if pairs < PAIRS:
        warn(
            f"{test} may reject calibrated models too often here: given the predictions its blocks have about "
            f"{pairs:.2g} pairs of samples that agree, and its law wants {PAIRS:g}; take larger blocks by "
            f"method='block'; {BY_DRAWS}",
            AntiConservativeWarning,
        )
