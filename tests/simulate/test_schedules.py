"""Seeded fault schedules over the whole control loop; a failing seed replays with `python -m benchmarks.simulate.run`."""

import time

import pytest

from tests.simulate.schedule import story
from tests.simulate.world import world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _orm_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.mark.parametrize("seed", range(30))
def test_a_schedule_ends_as_wished(seed: int) -> None:
    with world(seed) as w:
        t = time.time()
        try:
            w.run(story)
        except BaseException:
            print("\n".join(w.log[-60:]))
            raise
        finally:
            print(seed, time.time() - t, w.loop.time() - 1000)
