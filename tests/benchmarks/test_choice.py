"""The simulation of prefix affinity: prompts are found cached more often, and nobody waits longer for it."""

import pytest

from benchmarks.choice.simulation import SLOTS, run, trace
from tests.support.examples import first_of


@pytest.mark.parametrize("load", first_of([0.3, 0.8]))
def test_affinity_finds_more_cached_and_costs_no_wait(load: float) -> None:
    gains, ratios = [], []
    for seed in range(3):
        asked = trace(seed, per_second=load * 4 * SLOTS, seconds=60 / load, hot=0.5)  # a p99 of few says nothing
        plain, near = (run(asked, replicas=4, cache_blocks=6000, with_affinity=each) for each in (False, True))
        gains.append(near.hit_rate - plain.hit_rate)
        ratios.append(near.p99 / plain.p99)
    assert min(gains) > 0.03
    assert max(ratios) <= 1.1
