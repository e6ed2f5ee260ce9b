"""The world itself: what goes on without the process that set it off, and what a pause keeps for later."""

import asyncio
import contextvars
import signal
from collections.abc import Callable
from typing import Any

import pytest

from fleet.domain.states import NodeStatus
from fleet.models import Node, Replica
from tests.simulate.loop import PROCESS, Process, VirtualLoop
from tests.simulate.schedule import story as trouble
from tests.simulate.test_faults import _database_in_the_loop, begin, tell, until  # noqa: F401  (its fixture serves here too)
from tests.simulate.world import World, world


@pytest.mark.django_db(transaction=True)
def test_an_engine_that_was_told_to_end_does_so_though_its_agent_is_killed() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(1, 1))
        (engine,) = w.kernel.alive()
        (machine,) = w.machines
        engine.stuck_until = w.loop.time() + 2
        w.spawn(Process("terminator", machine), _tell(w, engine.pid))
        await until(w, 1, lambda: engine.told)
        for process in w.processes:
            process.dead = process.dead or process.name == "terminator"
        w.kill_agent(machine)
        await until(w, 5, lambda: engine.code is not None)

    tell(story, nodes=1)


async def _tell(w: World, pid: int) -> None:
    w.kernel.signal_all([pid], signal.SIGKILL)
    await asyncio.get_running_loop().create_future()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("part", ["web", "worker"])
def test_a_part_of_the_control_plane_that_dies_between_writes_is_started_again(part: str) -> None:
    async def story(w: World) -> None:
        await begin(w)
        before = {"web": w.web, "worker": w.worker}[part]
        w.crash_share = 1.0 if part == "worker" else 0.2
        w.wish("a", replicas=1, cards=1, revision=1, nodes=1)
        await until(w, 60, lambda: before is not None and before.dead)
        await until(w, 10, lambda: not {"web": w.web, "worker": w.worker}[part].dead)  # type: ignore[union-attr]

    tell(story, nodes=1)


@pytest.mark.django_db(transaction=True)
def test_a_paused_agent_does_nothing_and_does_all_of_it_when_it_goes_on() -> None:
    async def story(w: World) -> None:
        await begin(w)
        (machine,) = w.machines
        w.pause(machine.agent, 60.0)
        w.wish("a", replicas=1, cards=1, revision=1, nodes=1)
        await until(w, 50, lambda: Node.objects.get().status == NodeStatus.UNREACHABLE)
        assert not w.kernel.processes
        await until(w, 90, lambda: Replica.objects.filter(state="ready").exists())
        assert len(w.kernel.processes) == 1

    tell(story, nodes=1)


def test_what_was_cancelled_during_a_pause_is_not_called_after_it() -> None:
    loop, process = VirtualLoop(), Process("p")
    called: list[str] = []

    async def story() -> None:
        later: list[Any] = []
        first = _owned(process, lambda: (called.append("first"), later[0].cancel()))
        later.append(_owned(process, lambda: called.append("second"), 2.0))
        process.paused = True
        await asyncio.sleep(5)
        assert not called
        loop.go_on(process)
        await asyncio.sleep(1)
        assert not first.cancelled()

    loop.run_until_complete(story())
    loop.close()
    assert called == ["first"]


def _owned(process: Process, call: Callable[[], Any], seconds: float = 1.0) -> asyncio.Handle:
    """A timer that belongs to a process."""

    context = contextvars.copy_context()
    context.run(PROCESS.set, process)
    return asyncio.get_running_loop().call_later(seconds, call, context=context)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_tick_keeps_from_the_last_one_is_what_it_would_read(seed: int) -> None:
    with world(seed) as each:
        kept, wishes = 0, each.wishes

        def compared(*, unsettled_only: bool = False) -> Any:
            nonlocal kept
            if each._read_at.get(unsettled_only) == each.changes:
                kept += 1
                assert each._old_wishes[unsettled_only] == each._load(unsettled_only=unsettled_only)
            return wishes(unsettled_only=unsettled_only)

        each.wishes = compared  # type: ignore[method-assign]
        each.run(trouble)
    assert kept > 5
