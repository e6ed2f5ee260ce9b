"""Rows of the failure catalogue about agents and engines, on the whole control loop, with the default times."""

import shutil
import signal

import pytest

from fleet.domain.states import NodeStatus
from fleet.models import AgentSession, Event, Node, Shard
from fleet.services import operations
from tests.simulate.kernel import Broken
from tests.simulate.schedule import Judge, unsettled
from tests.simulate.test_faults import (  # noqa: F401  (its fixture serves here too)
    MINUTE,
    _database_in_the_loop,
    attempts,
    begin,
    engines,
    kinds,
    machine_of,
    tell,
    until,
)
from tests.simulate.world import World

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.heavy, pytest.mark.timeout(240)]


def test_after_a_reboot_the_next_attempt_is_ordered_within_two_seconds() -> None:
    """Failures 5: a new boot id tells that all old engines are dead; nothing waits for a deadline."""

    async def story(w: World) -> None:
        await begin(w, a=(1, 4))
        (engine,) = w.kernel.alive()
        machine = machine_of(w, engine)
        w.reboot(machine)
        w.start_agent(machine)
        await until(w, 30, lambda: Node.objects.get(name=machine.name).boot_id == machine.boot_id)
        assert await until(w, 2, lambda: Shard.objects.filter(epoch=2).exists()) < 2
        await until(w, MINUTE, lambda: not unsettled(w))
        assert attempts() == {2}
        assert "node_rebooted" in kinds()
        assert Shard.objects.get(epoch=1).code == "node_rebooted"  # the agent's own word for it comes later

    tell(story, nodes=1)


def test_two_agents_with_one_identity_are_quarantined_after_few_takeovers() -> None:
    """Failures 6: a cloned image. Both are shut out, both addresses are named, engines go on."""

    async def story(w: World) -> None:
        await begin(w, a=(1, 2))
        (engine,) = w.kernel.alive()
        original = machine_of(w, engine)
        copy = next(machine for machine in w.machines if machine is not original)
        w.kill_agent(copy)
        await w.sleep(5)
        shutil.copy(original.folder / "identity.json", copy.folder / "identity.json")
        before = AgentSession.objects.count()
        w.start_agent(copy)
        await w.sleep(60)
        assert AgentSession.objects.count() - before <= 3
        node = Node.objects.get(name=original.name)
        assert (node.status, node.connected) == (NodeStatus.QUARANTINED, False)
        text = Event.objects.get(kind="node_quarantined").text
        assert text.count("127.0.0.1") == 2
        assert engine.code is None

    tell(story, nodes=2)


def test_a_power_cut_of_everything_is_over_when_the_machines_are_back() -> None:
    """Nothing has listened since, so nobody's silence is known: it counts from the first machine's return."""

    async def story(w: World) -> None:
        await begin(w, a=(2, 2))
        w.kill_web()
        w.kill_worker()
        for machine in w.machines:
            w.reboot(machine)
        await w.sleep(5)
        w.start_web()
        w.start_worker()
        for machine in w.machines:
            w.start_agent(machine)
        await until(w, 2 * MINUTE, lambda: not unsettled(w))
        assert attempts() == {2}

    tell(story, nodes=2)


@pytest.mark.parametrize("how", ["frames vanish", "the stream breaks", "both"])
def test_ten_minutes_of_flaps_move_nothing_and_are_told_in_few_words(how: str) -> None:
    """Failures 10: every 5 s the link goes or comes; at most one event a minute."""

    async def story(w: World) -> None:
        await begin(w, a=(1, 4))
        before, told = engines(w), Event.objects.count()
        (engine,) = w.kernel.alive()
        for _ in range(60):
            if how != "frames vanish":
                for stream in [each for each in w.network.streams if each.node == engine.node]:
                    stream.cut()
            if how != "the stream breaks":
                w.network.away.add(engine.node)
            await w.sleep(5)
            w.network.away.clear()
            await w.sleep(5)
        assert engines(w) == before
        assert attempts() == {1}
        assert Event.objects.count() - told <= 10
        await until(w, MINUTE, lambda: not unsettled(w))
        assert engines(w) == before

    tell(story, nodes=2)


def test_of_four_ranks_one_dies_and_all_four_come_back_as_one_attempt() -> None:
    """Failures 38, F29: peers are ended within 30 s, and no rank of the new attempt meets one of the old."""

    async def story(w: World) -> None:
        await begin(w)
        w.wish("group", replicas=1, cards=8, revision=1, nodes=4)
        await until(w, 60, lambda: not unsettled(w))
        old = w.kernel.alive()
        assert len(old) == 4
        mixed: list[set[int]] = []
        w.checks.append(lambda: mixed.append({engine.epoch for engine in w.kernel.alive()}))
        w.kernel.exit(old[2], -9)
        assert await until(w, 30, lambda: all(engine.code is not None for engine in old)) < 30
        await until(w, 2 * MINUTE, lambda: attempts() == {2} and not unsettled(w))
        assert {engine.epoch for engine in w.kernel.alive()} == {2}
        assert all(len(epochs) <= 1 for epochs in mixed)

    tell(story, nodes=4)


@pytest.mark.parametrize("told", [False, True], ids=["before its deadline", "with its stop on its way"])
def test_a_drain_is_cancelled(told: bool) -> None:
    """Failures 39: what was told to stop ends and starts anew; all else serves on, and the judge knows them apart."""

    async def story(w: World) -> None:
        await begin(w, a=(1, 4))
        w.checks.append(Judge(w).look)
        (engine,) = w.kernel.alive()
        node = Node.objects.get(name=engine.node)
        w.network.away.add(engine.node)  # its frames are under way for long
        operations.drain_node(node=node, deadline_seconds=5, reason="", actor="t", now=w.wall_now())
        await w.sleep(15 if told else 3)
        assert Shard.objects.get().wanted is not told
        operations.cancel_drain(node=node, actor="t")
        operations.uncordon_node(node=node, actor="t")
        w.network.away.clear()
        await until(w, MINUTE, lambda: Node.objects.get(pk=node.pk).status == NodeStatus.READY)
        await w.sleep(10)
        assert (engine.code is None) is not told
        await until(w, MINUTE, lambda: not unsettled(w))
        assert attempts() == {2 if told else 1}

    tell(story, nodes=1)


def test_the_judge_excuses_no_end_during_a_drain_that_asked_for_none() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(1, 4))
        w.checks.append(Judge(w).look)
        (engine,) = w.kernel.alive()
        node = Node.objects.get(name=engine.node)
        operations.drain_node(node=node, deadline_seconds=600, reason="", actor="t", now=w.wall_now())
        await w.sleep(5)
        w.kernel.signal_all([engine.pid], signal.SIGTERM)
        with pytest.raises(Broken, match="nothing asked for it"):
            await w.sleep(5)

    tell(story, nodes=1)


def test_a_machine_whose_disk_is_full_while_it_joins_comes_in_when_there_is_room() -> None:
    """Its identity can't be kept then; what it was told is not lost for good."""

    async def story(w: World) -> None:
        w.machines[0].disk_full = True
        w.start_web()
        w.start_worker()
        for machine in w.machines:
            w.start_agent(machine)
        await w.sleep(30)
        w.machines[0].disk_full = False
        await until(w, 2 * MINUTE, lambda: Node.objects.filter(status=NodeStatus.READY).count() == 2)
        w.kill_agent(w.machines[0])
        w.start_agent(w.machines[0])
        await w.sleep(60)
        assert [node.status for node in Node.objects.all()] == [NodeStatus.READY] * 2

    tell(story, nodes=2)
