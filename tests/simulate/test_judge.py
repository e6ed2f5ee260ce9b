"""The judge is judged: each mistake that is made on purpose must be found within a few schedules.

The faults that bring a mistake to light are named, so that the seed need not hit on them. The schedule that found it is
run once more without the mistake, and must break nothing: so it was the mistake that was found, and not the patience.
"""

from collections.abc import Callable, Sequence

import pytest
from django.db import IntegrityError

from tests.simulate import faulty, hostile, schedule
from tests.simulate.kernel import Broken
from tests.simulate.schedule import Fault, story
from tests.simulate.test_schedules import _database_in_the_loop  # noqa: F401  (its fixture serves here too)
from tests.simulate.world import World, world

pytestmark = pytest.mark.django_db(transaction=True)

Mistake = Callable[[pytest.MonkeyPatch], None]
SCHEDULES = 30
HEALING_SECONDS = 100.0  # what is broken for good takes all of it

#: Mistake, and what brings it to light: for everybody, for CI, and what takes half a minute each.
QUICK: list[tuple[Mistake, list[Fault]]] = [
    (faulty.nothing_is_adopted, [schedule.agent_dies]),
    (faulty.healthy_engines_are_restarted_with_the_agent, [schedule.agent_dies]),
]
SLOW: list[tuple[Mistake, list[Fault]]] = [
    (faulty.silence_is_loss_at_once, [schedule.node_is_cut_off]),
    (faulty.a_stop_is_answered_and_forgotten, [schedule.someone_acts]),
    (faulty.one_replica_is_overlooked, [schedule.engine_dies]),
    (faulty.claims_outlive_their_shards, [schedule.engine_dies]),
    (faulty.nobody_is_welcomed_back, [schedule.web_dies]),
    (faulty.every_boot_is_believed, [hostile.identity_is_copied]),
]
SLOWEST: list[tuple[Mistake, list[Fault]]] = [
    (faulty.no_outage_is_held, [schedule.node_is_cut_off]),
    (faulty.a_replaced_engine_holds_no_cards, [schedule.node_is_cut_off, schedule.agent_dies]),
    (faulty.an_engine_is_gone_before_it_is, [schedule.engines_do_not_die, schedule.someone_acts]),
    (faulty.cards_are_free_before_they_are_empty, [schedule.engines_do_not_die, schedule.someone_acts]),
    (faulty.ranks_outlive_each_other, [schedule.engine_dies, schedule.node_reboots]),
    (faulty.a_lost_attempt_comes_back_beside_the_next, [schedule.node_is_cut_off, schedule.agent_dies]),
    (faulty.drains_never_end, [schedule.someone_acts]),
    (faulty.cordons_are_overlooked, [schedule.someone_acts]),
]


def broken_in(seed: int, faults: Sequence[Fault]) -> str:
    """What this schedule broke; empty when it broke nothing."""

    async def of_these(each: World) -> None:
        await story(each, faults, healing_seconds=HEALING_SECONDS)

    with world(seed) as each:
        try:
            each.run(of_these)
        except (Broken, IntegrityError) as broken:
            return str(broken)
    return ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mistake", "faults"),
    [
        *(pytest.param(*row, id=row[0].__name__) for row in QUICK),
        *(pytest.param(*row, id=row[0].__name__, marks=pytest.mark.heavy) for row in SLOW),
        *(pytest.param(*row, id=row[0].__name__, marks=pytest.mark.long) for row in SLOWEST),
    ],
)
def test_a_mistake_is_found(mistake: Mistake, faults: Sequence[Fault], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as made:
        mistake(made)
        seed = next((seed for seed in range(SCHEDULES) if broken_in(seed, faults)), None)
    assert seed is not None
    assert not broken_in(seed, faults)


def test_each_mistake_is_looked_for() -> None:
    made = {made for made in vars(faulty).values() if getattr(made, "__module__", "") == faulty.__name__}
    assert made == {mistake for mistake, _ in QUICK + SLOW + SLOWEST}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seeds",
    [pytest.param(range(first, first + 10), marks=pytest.mark.long) for first in (0, 10, 20)],
    ids=str,
)
def test_without_a_mistake_such_schedules_break_nothing(seeds: range) -> None:
    """These three together once did, without a mistake that was made on purpose."""
    faults = [schedule.frames_are_scrambled, schedule.engine_dies, schedule.someone_acts]
    assert not [broken for seed in seeds if (broken := broken_in(seed, faults))]
