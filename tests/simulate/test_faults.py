"""What has gone wrong for users of systems like this, on the whole control loop, with the default times.

Each test names the fault's whole kind; minutes and hours of it pass on the simulation's clock.
"""

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from agent_client.profile import Profile, parse_entry
from fleet.domain.states import NodeStatus, ReplicaState, ReplicaWish
from fleet.endpoints import published
from fleet.models import Event, GpuClaim, Node, Replica, Shard
from fleet.services import catalog, liveness, operations
from tests.simulate.kernel import EngineProcess
from tests.simulate.machine import GPU_CLASS
from tests.simulate.schedule import unsettled
from tests.simulate.world import World, world

pytestmark = pytest.mark.django_db(transaction=True)
MINUTE = 60.0


@pytest.fixture(autouse=True)
def _database_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # one thread: the loop itself reads the database


def tell(story: Callable[[World], Any], *, nodes: int = 4, cards: int = 4, **fleet: Any) -> None:
    """Run a story with the default times; `fleet` names what differs."""
    with world(1, nodes=nodes, cards=cards, fleet={"start_grace_seconds": 0.0, **fleet}) as each:
        each.run(story)


async def begin(w: World, **wishes: tuple[int, int]) -> None:
    """Everything runs, and every wish (replicas, cards) is true."""
    w.start_web()
    w.start_worker()
    for machine in w.machines:
        w.start_agent(machine)
    await w.sleep(5)
    for name, (replicas, cards) in wishes.items():
        w.wish(name, replicas=replicas, cards=cards, revision=1, nodes=2 if name == "group" else 1)
    await until(w, 60, lambda: not unsettled(w))


async def until(w: World, seconds: float, true: Callable[[], Any]) -> float:
    """How long it took; an assertion names the last state when it never came true."""
    began = w.loop.time()
    while not true():
        assert w.loop.time() - began < seconds, f"not within {seconds} s: {unsettled(w)}"
        await w.sleep(0.25)
    return w.loop.time() - began


def engines(w: World) -> set[tuple[str, int]]:
    return {(engine.label, engine.pid) for engine in w.kernel.alive()}


def machine_of(w: World, engine: EngineProcess) -> Any:
    return next(machine for machine in w.machines if machine.name == engine.node)


def kinds() -> list[str]:
    return list(Event.objects.order_by("id").values_list("kind", flat=True))


def attempts() -> set[int]:
    return set(Replica.objects.values_list("attempt", flat=True))


# --- nodes, links, control plane -------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.timeout(240)
@pytest.mark.parametrize("silent", ["listener", "database", "network"])
def test_f1_most_of_a_fleet_silent_for_ten_minutes_loses_nothing(silent: str) -> None:
    async def story(w: World) -> None:
        await begin(w, a=(20, 4))
        before = engines(w)
        match silent:
            case "listener":
                w.kill_web()
            case "database":
                w.database_away = True
            case "network":
                w.network.away |= {machine.name for machine in w.machines}
        await w.sleep(10 * MINUTE)
        assert engines(w) == before
        assert "node_lost" not in kinds()
        if silent == "network":
            assert kinds().count("eviction_held") == 1
            assert "20 nodes are silent" in Event.objects.get(kind="eviction_held").text
            assert "20 nodes are silent" in liveness.eviction_held()
        w.start_web()
        w.database_away = False
        w.network.away.clear()
        if silent != "network":
            await until(w, MINUTE, lambda: "deaf_ended" in kinds())
        await until(w, 2 * MINUTE, lambda: not unsettled(w))
        await w.sleep(MINUTE)
        assert engines(w) == before
        assert attempts() == {1}
        assert liveness.eviction_held() == ""
        assert kinds().count("eviction_released") == kinds().count("eviction_held")
        # Who could not hear says so. A database that hung may be back before anything is judged: then it is told once.
        assert kinds().count("deaf_ended") == (silent != "network")
        assert kinds().count("deaf_began") <= (silent != "network")
        assert kinds().count("deaf_began") >= (silent == "listener")
        assert liveness.deaf() == ""

    tell(story, nodes=20)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_twenty_of_thirty_nodes_silent_at_once_are_held_and_one_of_twenty_is_replaced() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(3, 4))
        gone = w.kernel.alive()[0]
        w.network.away.add(gone.node)
        took = await until(w, 8 * MINUTE, lambda: "node_lost" in kinds())
        assert took > 290
        replaced = await until(w, 60, lambda: Replica.objects.filter(state=ReplicaState.READY).count() == 3)
        assert replaced < 30
        w.network.away.clear()
        # The one that was replaced is ended there before anything else is.
        await until(w, 2 * MINUTE, lambda: not unsettled(w))
        assert gone.code is not None

        before = engines(w)
        free = w.machines[:20]
        w.network.away |= {machine.name for machine in free}
        await w.sleep(10 * MINUTE)
        assert kinds().count("node_lost") == 1
        assert kinds().count("eviction_held") == 1
        w.network.away.clear()
        await until(w, 2 * MINUTE, lambda: not unsettled(w))
        assert engines(w) == before

    tell(story, nodes=30)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_an_operator_may_accept_the_loss_that_the_brake_holds() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(4, 4))
        lost = {engine.node for engine in w.kernel.alive()}
        w.network.away |= lost
        await until(w, 8 * MINUTE, liveness.eviction_held)
        named = liveness.accept_losses(actor="ops")
        assert set(named) == lost
        await until(w, 6 * MINUTE, lambda: Node.objects.filter(status=NodeStatus.LOST).count() == len(lost))
        await until(w, 2 * MINUTE, lambda: Replica.objects.filter(state=ReplicaState.READY).count() == 4)
        assert not lost & set(Shard.objects.filter(state="ready").values_list("node__name", flat=True))

    tell(story, nodes=9)


@pytest.mark.long
@pytest.mark.timeout(480)
def test_f2_five_hundred_agents_on_four_slow_connections_to_the_database_lag_less_than_two_intervals() -> None:
    async def story(w: World) -> None:
        w.start_web()
        w.start_worker()
        for machine in w.machines:
            w.start_agent(machine)
        await until(w, 120, lambda: Node.objects.filter(status=NodeStatus.READY).count() == 500)
        w.pool, w.query_seconds = asyncio.Semaphore(4), 0.05
        for _ in range(6):
            await w.sleep(15)
            oldest = Node.objects.order_by("last_seen_at").values_list("last_seen_at", flat=True)[0]
            assert oldest is not None
            assert (w.database_now() - oldest).total_seconds() < 20
        assert "node_unreachable" not in kinds()

    tell(story, nodes=500, cards=0)


def test_f3_a_link_cut_for_a_minute_changes_only_what_is_shown() -> None:
    async def story(w: World) -> None:
        await begin(w, group=(1, 4))
        before = engines(w)
        other = next(engine for engine in w.kernel.alive() if engine.shard.endswith("/1"))
        w.network.away.add(other.node)
        await w.sleep(60)
        assert Node.objects.get(name=other.node).status == NodeStatus.UNREACHABLE
        assert (
            Replica.objects.get().state == ReplicaState.READY
        )  # the engines are there, and routers see for themselves
        w.network.away.clear()
        # The agent dials again within 30 s; from then on everything is right again within one heartbeat.
        await until(w, 35, lambda: any(stream.node == other.node for stream in w.network.streams))
        await until(w, 10, lambda: not unsettled(w))
        assert Node.objects.get(name=other.node).status == NodeStatus.READY
        assert attempts() == {1}
        assert engines(w) == before

    tell(story)


def test_f4_a_driver_that_answers_no_question_silences_nobody() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(1, 1))
        before = engines(w)
        (engine,) = w.kernel.alive()
        machine_of(w, engine).query_hangs = True
        await w.sleep(3 * MINUTE)
        node = Node.objects.get(name=engine.node)
        assert node.status == NodeStatus.READY
        assert "node_unreachable" not in kinds()
        assert node.inventory_stale_seconds is not None
        assert 2 * MINUTE < node.inventory_stale_seconds < 4 * MINUTE
        assert Replica.objects.get().state == ReplicaState.READY
        assert engines(w) == before

    tell(story, nodes=1)


def test_f6_a_half_open_stream_is_found_out_within_45_seconds_and_its_late_end_changes_nothing() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(1, 1))
        before = engines(w)
        old = next(iter(w.network.streams))
        old.deaf = True  # frames vanish; neither end is told
        took = await until(w, 45, lambda: any(s.node == old.node and s is not old for s in w.network.streams))
        assert took < 45
        await until(w, 20, lambda: Node.objects.get(name=old.node).status == NodeStatus.READY)
        session = Node.objects.get(name=old.node).session_id
        old.cut()
        await w.sleep(30)
        assert Node.objects.get(name=old.node).session_id == session
        assert Node.objects.get(name=old.node).connected
        assert engines(w) == before

    tell(story)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_f8_a_third_of_all_frames_lost_changes_only_how_long_things_take() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(2, 2))
        w.network.lossy = 0.3
        w.wish("a", replicas=4, cards=2, revision=1, nodes=1)
        w.wish("b", replicas=3, cards=1, revision=1, nodes=1)
        await w.sleep(4 * MINUTE)
        w.wish("a", replicas=1, cards=2, revision=1, nodes=1)
        await w.sleep(4 * MINUTE)
        w.network.lossy = 0.0
        await until(w, 2 * 180.0, lambda: not unsettled(w))

    tell(story)


@pytest.mark.heavy
@pytest.mark.timeout(240)
@pytest.mark.parametrize("part", ["web", "worker", "bus", "database", "all"])
def test_f9_half_an_hour_without_a_part_of_the_control_plane_stops_nothing(part: str) -> None:
    async def story(w: World) -> None:
        await begin(w, a=(3, 2), group=(1, 4))
        before = engines(w)
        if part in ("web", "all"):
            w.kill_web()
        if part in ("worker", "all"):
            w.kill_worker()
        w.bus_up = part not in ("bus", "all")
        w.database_away = part in ("database", "all")
        await w.sleep(30 * MINUTE)
        assert engines(w) == before
        w.bus_up, w.database_away = True, False
        w.start_web()
        w.start_worker()
        await until(w, 3 * MINUTE, lambda: not unsettled(w))
        assert engines(w) == before
        assert attempts() == {1}

    tell(story, start_grace_seconds=180.0)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_f10_a_node_that_was_away_comes_back_as_itself_and_nothing_is_claimed_unseen() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(1, 4), b=(1, 4))
        moved, stays = sorted(w.kernel.alive(), key=lambda engine: engine.label)
        w.network.away.add(moved.node)
        await until(w, 8 * MINUTE, lambda: "node_lost" in kinds())
        gone = Node.objects.get(name=moved.node)
        replica = Replica.objects.get(uid=moved.shard.rpartition("/")[0])
        await until(w, 60, lambda: Replica.objects.get(pk=replica.pk).state == ReplicaState.READY)
        await w.sleep(20 * MINUTE)
        old = Shard.objects.get(replica=replica, epoch=moved.epoch)
        assert old.state == "lost"  # never "stopped": nobody has seen that
        w.network.away.clear()
        await until(w, 2 * MINUTE, lambda: not unsettled(w))
        assert Node.objects.get(name=moved.node).pk == gone.pk
        assert moved.code is not None
        assert stays.code is None

    tell(story)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_f10_a_node_that_returns_before_it_was_replaced_keeps_its_engine() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(1, 4))
        (engine,) = w.kernel.alive()
        for machine in w.machines:  # there is no other place
            if machine.name != engine.node:
                machine.sick |= set(machine.uuids)
        await w.sleep(45)
        w.network.away.add(engine.node)
        await until(w, 8 * MINUTE, lambda: "node_lost" in kinds())
        await until(w, 10, lambda: Replica.objects.get().state == ReplicaState.PENDING)
        w.network.away.clear()
        await until(w, 2 * MINUTE, lambda: Replica.objects.get().state == ReplicaState.READY)
        assert engine.code is None
        assert attempts() == {1}

    tell(story, nodes=2)


# --- identity --------------------------------------------------------------------------------------------------------


def test_f12_a_deleted_node_is_told_what_to_do() -> None:
    async def story(w: World) -> None:
        await begin(w)
        machine = w.machines[0]
        w.kill_agent(machine)
        await w.sleep(1)
        operations.delete_node(node=Node.objects.get(name=machine.name), actor="ops", now=w.wall_now())
        w.start_agent(machine)
        await w.sleep(40)
        assert not Node.objects.filter(name=machine.name).exists()
        w.kill_agent(machine)
        (machine.folder / "identity.json").unlink()  # what `join` does
        w.start_agent(machine)
        await until(w, 45, lambda: Node.objects.filter(name=machine.name, status=NodeStatus.READY).exists())

    tell(story)


def test_f15_the_control_plane_killed_in_the_middle_of_a_start_doubles_and_loses_nothing() -> None:
    async def story(w: World) -> None:
        await begin(w)
        w.kernel.load_seconds = (5.0, 15.0)
        w.wish("a", replicas=4, cards=2, revision=1, nodes=1)
        await until(w, 20, lambda: len(w.kernel.alive()) >= 2)
        w.kill_web()
        w.kill_worker()
        await w.sleep(5)
        w.start_web()
        w.start_worker()
        await until(w, 3 * MINUTE, lambda: not unsettled(w))
        assert len(w.kernel.processes) == 4
        assert attempts() == {1}

    tell(story)


# --- placement and lifecycle -----------------------------------------------------------------------------------------


def test_f22_a_failed_replica_holds_no_card() -> None:
    async def story(w: World) -> None:
        await begin(w)
        w.kernel.crash_share = 1.0
        w.kernel.load_seconds = (30.0, 30.0)
        w.wish("a", replicas=1, cards=4, revision=1, nodes=1)
        await until(w, 60, lambda: Replica.objects.filter(state=ReplicaState.FAILED).exists())
        assert not GpuClaim.objects.filter(released_at__isnull=True).exists()

    tell(story, nodes=1)


def test_f23_a_pending_replica_is_ordered_within_five_seconds_of_a_node_s_coming() -> None:
    async def story(w: World) -> None:
        w.start_web()
        w.start_worker()
        w.wish("a", replicas=1, cards=4, revision=1, nodes=1)
        await w.sleep(30)
        assert Replica.objects.get().state == ReplicaState.PENDING
        w.start_agent(w.machines[0])
        await until(w, 10, lambda: Node.objects.filter(status=NodeStatus.READY).exists())
        assert await until(w, 5, w.kernel.alive) < 5

    tell(story)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_f28_a_stop_while_its_node_is_away_happens_within_ten_seconds_of_the_return() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(1, 2))
        (engine,) = w.kernel.alive()
        machine = machine_of(w, engine)
        w.kill_agent(machine)
        await w.sleep(5)
        operations.set_wish(replica=Replica.objects.get(), wish=ReplicaWish.STOP, actor="ops", now=w.wall_now())
        await w.sleep(5 * MINUTE)
        assert engine.code is None
        w.start_agent(machine)
        await until(w, 5, lambda: Node.objects.get(name=machine.name).connected)
        assert await until(w, 10, lambda: engine.code is not None) < 10
        await until(w, 10, lambda: Replica.objects.get().state == ReplicaState.STOPPED)

    tell(story)


def test_f29_a_rank_s_death_restarts_the_whole_replica_as_the_next_attempt() -> None:
    async def story(w: World) -> None:
        await begin(w, group=(1, 4))
        ranks = sorted(w.kernel.alive(), key=lambda engine: engine.label)
        assert [engine.shard[-1] for engine in ranks] == ["0", "1"]
        w.kernel.exit(ranks[1], -9)
        await until(w, 2 * MINUTE, lambda: attempts() == {2} and not unsettled(w))
        assert ranks[0].code is not None
        assert {engine.epoch for engine in w.kernel.alive()} == {2}
        ports = set(Shard.objects.values_list("epoch", "rendezvous_port"))
        assert len({port for _, port in ports}) == 2  # the ranks of two attempts never meet

    tell(story)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_f29_ranks_of_a_replica_whose_node_is_lost_are_ended_everywhere() -> None:
    async def story(w: World) -> None:
        await begin(w, group=(1, 4))
        first, second = sorted(w.kernel.alive(), key=lambda engine: engine.label)
        w.network.away.add(second.node)
        await until(w, 8 * MINUTE, lambda: "node_lost" in kinds())
        await until(w, MINUTE, lambda: first.code is not None)
        await until(w, 2 * MINUTE, lambda: Replica.objects.get().state == ReplicaState.READY)
        w.network.away.clear()
        await until(w, 2 * MINUTE, lambda: not unsettled(w))
        assert second.code is not None

    tell(story)


def test_f27_cards_of_an_engine_that_does_not_die_are_given_to_nobody() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(1, 4))
        (engine,) = w.kernel.alive()
        engine.deaf, engine.stuck_until = True, w.loop.time() + 3 * MINUTE
        operations.set_wish(replica=Replica.objects.get(), wish=ReplicaWish.STOP, actor="ops", now=w.wall_now())
        await until(w, MINUTE, lambda: Shard.objects.get().state == "stop_stuck")
        assert str(engine.pid) in Shard.objects.get().reason
        w.wish("b", replicas=1, cards=4, revision=1, nodes=1)
        await w.sleep(60)
        assert Replica.objects.get(model__name="b").state == ReplicaState.PENDING
        await until(w, 5 * MINUTE, lambda: Replica.objects.get(model__name="b").state == ReplicaState.READY)
        assert engine.code is not None

    tell(story, nodes=1)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_f25_what_never_listens_fails_at_its_deadline_and_what_exits_within_three_seconds() -> None:
    async def story(w: World) -> None:
        await begin(w)
        w.kernel.load_seconds = (9e9, 9e9)
        w.wish("a", replicas=1, cards=1, revision=1, nodes=1, start_timeout_seconds=60)
        await until(w, 10, w.kernel.alive)
        (engine,) = w.kernel.alive()
        took = await until(w, 90, lambda: Replica.objects.get().latest_failure)
        assert 55 < took < 70
        assert (Replica.objects.get().latest_failure["code"], engine.code is None) == ("start_timeout", False)

        operations.set_wish(replica=Replica.objects.get(), wish=ReplicaWish.STOP, actor="ops", now=w.wall_now())
        w.wish("b", replicas=1, cards=1, revision=1, nodes=1, start_timeout_seconds=60)
        await until(w, 10, lambda: Shard.objects.filter(replica__model__name="b", state="loading").exists())
        w.kernel.exit(w.kernel.alive()[-1], 3)
        took = await until(w, 3, lambda: Replica.objects.get(model__name="b").latest_failure)
        assert took < 3
        assert Replica.objects.get(model__name="b").latest_failure["exit_code"] == 3

    tell(story)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_an_engine_that_gets_ready_and_dies_again_and_again_is_tried_ever_more_seldom() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(1, 1))
        waits: list[float] = []
        while len(waits) < 6:
            await until(w, 400, lambda: Replica.objects.get().state == ReplicaState.READY)
            await w.sleep(20)  # a short time of ready forgives nothing
            w.kernel.exit(w.kernel.alive()[0], 1)
            waits.append(await until(w, 400, w.kernel.alive))
        assert all(later > 1.4 * sooner for sooner, later in itertools.pairwise(waits[:5]))
        assert waits[5] == pytest.approx(275, abs=40)  # 300 s at most, with up to a fifth of jitter
        assert kinds().count("replica_loops") == 4

    tell(story, nodes=1)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_a_node_that_comes_and_goes_gets_nothing_new_and_keeps_what_it_has() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(1, 2))
        (engine,) = w.kernel.alive()
        for _ in range(3):
            w.network.away.add(engine.node)
            await until(w, 60, lambda: Node.objects.get(name=engine.node).status == NodeStatus.UNREACHABLE)
            w.network.away.clear()
            await until(w, 60, lambda: Node.objects.get(name=engine.node).status == NodeStatus.READY)
        assert kinds().count("node_flaps") == 2
        assert Event.objects.filter(kind="node_flaps", text__endswith="nothing new is placed there for 120 s").exists()
        w.wish("a", replicas=2, cards=2, revision=1, nodes=1)
        await w.sleep(1.5 * MINUTE)
        assert Replica.objects.get(number=2).state == ReplicaState.PENDING
        assert (engine.code, Replica.objects.get(number=1).state) == (None, ReplicaState.READY)
        await until(w, MINUTE, lambda: Replica.objects.filter(state=ReplicaState.READY).count() == 2)

    tell(story, nodes=1)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def _from_hub(w: World, *, seconds: float, step: float | None) -> None:
    """A model by hub id that another agent fetches; its figure moves every `step` seconds, or never."""

    async def fetch(agent: Any, profile: Profile, on_progress: Callable[[str, float | None], None]) -> Profile:
        began = w.loop.time()
        on_progress("waiting", 0.0 if step else None)
        while w.loop.time() - began < seconds:
            await asyncio.sleep(step or seconds)
            on_progress("waiting", min(1.0, (w.loop.time() - began) / seconds) if step else None)
        return dataclasses.replace(profile, model="/cache/m")

    w.fetch = fetch
    profile = {"engine": "vllm", "model": "org/m", "gpu_class": [GPU_CLASS], "start_timeout_seconds": 400}
    profile["env"] = {"REVISION": "1"}
    catalog.save_entry(parse_entry({"name": "hub", "profile": profile}), actor="test")


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_a_wait_for_another_agents_fetch_that_moves_is_never_given_up() -> None:
    async def story(w: World) -> None:
        await begin(w)
        _from_hub(w, seconds=16 * MINUTE, step=5.5 * MINUTE)
        took = await until(w, 20 * MINUTE, lambda: Replica.objects.filter(state=ReplicaState.READY).exists())
        assert took > 16 * MINUTE
        assert attempts() == {1}
        assert len(w.kernel.processes) == 1

    tell(story, nodes=1)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_a_fetch_that_does_not_move_for_the_profiles_time_is_given_up() -> None:
    async def story(w: World) -> None:
        await begin(w)
        _from_hub(w, seconds=90 * MINUTE, step=None)
        took = await until(w, 10 * MINUTE, lambda: attempts() >= {2})
        assert took > 460

    tell(story, nodes=1)


# --- drains ----------------------------------------------------------------------------------------------------------


def test_a_node_is_drained_with_the_replacement_ready_before_the_old_one_stops() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(1, 4))
        (engine,) = w.kernel.alive()
        node = Node.objects.get(name=engine.node)
        operations.drain_node(node=node, deadline_seconds=300, reason="new fans", actor="ops", now=w.wall_now())
        least = 9
        while engine.code is None:
            await w.sleep(0.25)
            least = min(least, Replica.objects.filter(state=ReplicaState.READY).count())
        assert least >= 1
        await until(w, MINUTE, lambda: Replica.objects.filter(state=ReplicaState.READY).count() == 1)
        assert {each.node for each in w.kernel.alive()} != {node.name}

    tell(story)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_a_cancelled_drain_leaves_everything_where_it_is() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(2, 4))
        before = engines(w)
        node = Node.objects.get(name=w.kernel.alive()[0].node)
        operations.drain_node(node=node, deadline_seconds=300, reason="", actor="ops", now=w.wall_now())
        await w.sleep(30)
        operations.cancel_drain(node=Node.objects.get(pk=node.pk), actor="ops")
        await w.sleep(6 * MINUTE)
        assert engines(w) == before  # there was no room for others beside them

    tell(story, nodes=2)


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_f48_a_stream_of_five_minutes_survives_a_drain_of_ten_and_the_deadline_ends_another() -> None:
    async def story(w: World) -> None:
        await begin(w, a=(2, 1))
        ends_soon, ends_never = sorted(w.kernel.alive(), key=lambda each: each.label)
        ends_soon.requests = ends_never.requests = 1
        began = w.loop.time()
        by_uid = {str(replica.uid): replica for replica in Replica.objects.all()}
        drained = [by_uid[each.shard.rpartition("/")[0]] for each in (ends_soon, ends_never)]
        for replica in drained:
            operations.drain_replica(replica=replica, actor="ops", now=w.wall_now(), deadline_seconds=600)
        await until(w, 10, lambda: Shard.objects.filter(state="draining").count() == 2)
        (route,) = [each for each in published() if each["name"] == "a"]
        assert [each["draining"] for each in route["endpoints"]] == [True, True]  # nothing new for either
        await w.sleep(5 * MINUTE)
        assert (ends_soon.code, ends_never.code) == (None, None)
        assert set(Shard.objects.values_list("running", flat=True)) == {1}  # how far it is can be seen
        ends_soon.requests = 0
        await until(w, 20, lambda: ends_soon.code is not None)
        await w.sleep(3 * MINUTE)
        assert ends_never.code is None
        await until(w, 3 * MINUTE, lambda: ends_never.code is not None)
        assert 600 <= w.loop.time() - began < 605
        await until(w, 10, lambda: Replica.objects.filter(state=ReplicaState.STOPPED).count() == 2)

    tell(story, nodes=1)
