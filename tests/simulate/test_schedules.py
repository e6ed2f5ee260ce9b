"""Seeded fault schedules over the whole control loop; `python -m benchmarks.simulate.run --seed N` replays one."""

import pytest

from fleet.models import Event
from tests.simulate.schedule import story
from tests.simulate.world import world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _database_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # one thread: the loop itself reads the database


def happened(seed: int) -> list[tuple[object, ...]]:
    """Everything that was recorded in one schedule."""
    with world(seed) as each:
        try:
            each.run(story)
        except BaseException:
            print(*each.log, sep="\n")
            raise
        return list(Event.objects.order_by("id").values_list("at", "kind", "text"))


@pytest.mark.parametrize("first", range(0, 10, 5))
def test_trouble_breaks_no_promise_and_the_wish_comes_true(first: int) -> None:
    for seed in range(first, first + 5):
        happened(seed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "first",
    [
        *(pytest.param(first, marks=pytest.mark.heavy) for first in range(10, 100, 10)),
        *(pytest.param(first, marks=pytest.mark.long) for first in range(100, 300, 10)),
    ],
)
def test_much_trouble_breaks_no_promise(first: int) -> None:
    for seed in range(first, first + 10):
        happened(seed)


def test_a_seed_replays_exactly() -> None:
    assert happened(3) == happened(3)
