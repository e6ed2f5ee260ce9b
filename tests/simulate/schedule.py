"""A schedule of faults from a seed: trouble, then healing, then the fleet must be as wished or say why not.

Always, in the middle of it too: no card with two engines, no shard with two, no healthy engine ended without a reason.
"""

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from django.db import connection

from agent_client.profile import parse_profile
from agent_client.protocol.states import ENDED_SHARD_STATES, FailureCode, ShardState
from fleet import snapshots
from fleet.domain.placement import place
from fleet.domain.reasons import Refusal
from fleet.domain.states import NodeStatus, ReplicaState, ReplicaWish, RolloutState
from fleet.models import CatalogModel, Event, GpuClaim, Node, Replica, Shard
from fleet.services import operations
from fleet.services.errors import FleetError
from tests.simulate import hostile
from tests.simulate.kernel import Broken, EngineProcess
from tests.simulate.world import World

#: Most mistakes need few faults; what needs many gets its share.
TROUBLE_SECONDS = (4.0, 8.0, 15.0, 40.0)
HEALING_SECONDS = 450.0  # longer than the longest pause after crashes


async def story(
    world: World, faults: "Sequence[Fault] | None" = None, *, healing_seconds: float = HEALING_SECONDS
) -> None:
    """One whole schedule; raises Broken. `faults`: these, where the seed is not to draw them."""
    judge = Judge(world)
    world.checks.append(judge.look)
    world.verdict_checks.append(judge.look_at_losses)
    world.start_web()
    world.start_worker()
    for machine in world.machines:
        world.start_agent(machine)
    await world.sleep(world.chance.uniform(0.5, 4.0))
    _wishes(world, judge)
    await world.sleep(world.chance.uniform(0.0, 8.0))
    await _trouble(world, judge, faults or world.chance.sample(FAULTS, k=world.chance.randint(2, 6)))
    heal(world)
    await settle(world, healing_seconds)


# -- trouble ---------------------------------------------------------------------------------------------------------


async def _trouble(world: World, judge: "Judge", faults: "Sequence[Fault]") -> None:
    chance = world.chance
    until = world.loop.time() + chance.choice(TROUBLE_SECONDS)
    while world.loop.time() < until:
        await world.sleep(chance.uniform(0.2, 6.0))
        chance.choice(faults)(world, judge)


def _later(world: World, least: float, most: float, call: Callable[..., Any], *args: Any) -> None:
    world.loop.call_later(world.chance.uniform(least, most), call, *args)


def _for_a_while(world: World, least: float, most: float, field: str, value: bool) -> None:
    setattr(world, field, value)
    _later(world, least, most, setattr, world, field, not value)


def agent_dies(world: World, judge: "Judge") -> None:
    machine = world.chance.choice(world.machines)
    world.kill_agent(machine)
    _later(world, 0.1, 25.0, world.start_agent, machine)


def node_reboots(world: World, judge: "Judge") -> None:
    machine = world.chance.choice(world.machines)
    world.reboot(machine)
    _later(world, 1.0, 25.0, world.start_agent, machine)


def node_is_cut_off(world: World, judge: "Judge") -> None:
    count = world.chance.choice([1, 1, 1, 2, len(world.machines)])
    for machine in world.chance.sample(world.machines, k=count):
        world.note(f"{machine.name} is cut off")
        world.network.away.add(machine.name)
        _later(world, 0.5, 40.0, world.network.away.discard, machine.name)


def stream_breaks(world: World, judge: "Judge") -> None:
    if world.network.streams:
        stream = world.chance.choice(sorted(world.network.streams, key=lambda each: each.node))
        half = world.chance.random() < 0.5
        world.note(f"the stream of {stream.node} {'goes deaf' if half else 'breaks'}")
        if half:
            stream.deaf = True
        else:
            stream.cut()


def frames_are_scrambled(world: World, judge: "Judge") -> None:
    world.note("frames are doubled and overtake each other")
    world.network.scramble, world.network.latency = True, 1.5


def frames_are_lost(world: World, judge: "Judge") -> None:
    world.note("frames vanish")
    world.network.lossy = world.chance.choice([0.05, 0.3])


def web_dies(world: World, judge: "Judge") -> None:
    world.kill_web()
    _later(world, 0.2, 20.0, world.start_web)


def worker_dies(world: World, judge: "Judge") -> None:
    world.kill_worker()
    _later(world, 0.2, 20.0, world.start_worker)


def control_plane_dies_between_writes(world: World, judge: "Judge") -> None:
    world.note("the control plane dies after writes")
    world.crash_share = 0.02


def bus_dies(world: World, judge: "Judge") -> None:
    world.note("the bus is away")
    _for_a_while(world, 1.0, 30.0, "bus_up", False)


def database_goes(world: World, judge: "Judge") -> None:
    world.note("the database is away")
    _for_a_while(world, 0.5, 12.0, "database_away", True)


def database_is_full(world: World, judge: "Judge") -> None:
    world.note("the database's disk is full")
    _for_a_while(world, 0.5, 12.0, "database_full", True)


def answers_are_lost(world: World, judge: "Judge") -> None:
    world.note("the database does what it is asked, but its answers are lost")
    world.lost_answers = 0.1


def snapshots_are_old(world: World, judge: "Judge") -> None:
    world.note("the reconciler decides on old snapshots")
    world.stale_share = 0.4


def clocks_jump(world: World, judge: "Judge") -> None:
    world.wall_offset += timedelta(seconds=world.chance.choice([-3600, -20, 20, 3600]))
    world.note(f"the control plane's clock jumps, now off by {world.wall_offset}")


def database_clock_jumps(world: World, judge: "Judge") -> None:
    world.database_offset += timedelta(seconds=world.chance.choice([-3600, -20, 20, 3600]))
    world.note(f"the database's clock jumps, now off by {world.database_offset}")


def engine_dies(world: World, judge: "Judge") -> None:
    alive = world.kernel.alive()
    if alive:
        engine = world.chance.choice(alive)
        world.note(f"{engine.label} on {engine.node} dies")
        engine.stuck_until = 0.0
        world.kernel.exit(engine, world.chance.choice([0, 1, -9, -11]))


def engines_fail_to_load(world: World, judge: "Judge") -> None:
    world.note("engines fail while they load, or load too long")
    world.kernel.crash_share = 0.3
    world.kernel.load_seconds = (0.5, 25.0)


def engines_do_not_die(world: World, judge: "Judge") -> None:
    world.note("engines are deaf to TERM, some do not die for long")
    world.kernel.deaf_share, world.kernel.stuck_share = 0.5, 0.3


def disk_fills(world: World, judge: "Judge") -> None:
    machine = world.chance.choice(world.machines)
    world.note(f"the disk of {machine.name} is full")
    machine.disk_full = True
    _later(world, 1.0, 30.0, setattr, machine, "disk_full", False)


def card_falls_off(world: World, judge: "Judge") -> None:
    machine = world.chance.choice(world.machines)
    card = world.chance.choice(machine.uuids)
    world.note(f"{card} falls off")
    machine.sick.add(card)
    _later(world, 5.0, 60.0, machine.sick.discard, card)


def ledger_is_lost(world: World, judge: "Judge") -> None:
    machine = world.chance.choice(world.machines)
    world.kill_agent(machine)
    world.note(f"the ledger of {machine.name} is garbage")
    (machine.folder / "ledger.json").write_bytes(b"garbage")
    judge.excused.add(machine.name)
    _later(world, 0.1, 10.0, world.start_agent, machine)


def someone_acts(world: World, judge: "Judge") -> None:
    """An operator's hand, in the middle of it all."""
    if world.database_away or world.database_full:
        return
    chance = world.chance
    replicas = list(Replica.objects.select_related("model").order_by("pk"))
    nodes = list(Node.objects.order_by("pk"))
    model = chance.choice(list(judge.wished))
    now = world.wall_now()
    match chance.randint(0, 7):
        case 0:
            judge.wish(model, replicas=chance.randint(0, 4))
        case 1:
            judge.wish(model, revision=judge.wished[model]["revision"] + 1)
        case 2 if nodes:
            node = chance.choice(nodes)
            world.note(f"{node.name} is {'cordoned' if node.schedulable else 'uncordoned'}")
            if node.schedulable:
                operations.cordon_node(node=node, reason="simulated", actor="simulation")
            else:
                operations.uncordon_node(node=node, actor="simulation")
        case 3 if nodes:
            node = chance.choice(nodes)
            if node.drain_deadline_at is None:
                world.note(f"{node.name} is drained")
                operations.drain_node(
                    node=node, deadline_seconds=chance.uniform(0, 20), reason="", actor="simulation", now=now
                )
            else:
                world.note(f"the drain of {node.name} is cancelled")
                operations.cancel_drain(node=node, actor="simulation")
        case 4 if replicas:
            replica = chance.choice(replicas)
            world.note(f"{replica.label} is drained")
            judge.touched[replica.pk] = replica.attempt
            with contextlib.suppress(FleetError):
                operations.drain_replica(replica=replica, actor="simulation", now=now, deadline_seconds=5.0)
        case 5 | 6 | 7 if replicas:
            replica = chance.choice(replicas)
            wish = chance.choice(["restart", ReplicaWish.STOP, ReplicaWish.RUN])
            world.note(f"someone says {wish} to {replica.label}")
            judge.touched[replica.pk] = replica.attempt
            with contextlib.suppress(FleetError):  # told in words; the fleet is as it was
                if isinstance(wish, ReplicaWish):
                    operations.set_wish(replica=replica, wish=wish, actor="simulation", now=now)
                else:
                    operations.restart_replica(replica=replica, actor="simulation", now=now)


Fault = Callable[[World, "Judge"], None]

FAULTS: list[Fault] = [
    agent_dies,
    node_reboots,
    node_is_cut_off,
    stream_breaks,
    frames_are_scrambled,
    frames_are_lost,
    web_dies,
    worker_dies,
    control_plane_dies_between_writes,
    bus_dies,
    database_goes,
    database_is_full,
    answers_are_lost,
    snapshots_are_old,
    clocks_jump,
    database_clock_jumps,
    engine_dies,
    engines_fail_to_load,
    engines_do_not_die,
    disk_fills,
    card_falls_off,
    ledger_is_lost,
    someone_acts,
    hostile.agent_is_paused,
    hostile.web_is_paused,
    hostile.worker_is_paused,
    hostile.worker_is_paused_between_decision_and_deed,
    hostile.model_is_deleted,
    hostile.node_is_deleted,
    hostile.old_ledger_is_put_back,
    hostile.identity_is_copied,
]


def heal(world: World) -> None:
    world.note("everything heals")
    world.crash_share = world.stale_share = world.lost_answers = world.network.lossy = 0.0
    world.database_away, world.database_full, world.bus_up = False, False, True
    world.network.away.clear()
    world.network.scramble, world.network.latency = False, 0.02
    world.kernel.crash_share = world.kernel.deaf_share = world.kernel.stuck_share = 0.0
    world.kernel.load_seconds = (0.5, 6.0)
    for machine in world.machines:
        machine.disk_full = False
        machine.sick.clear()
        world.start_agent(machine)
    world.pause_decided = None
    for process in world.processes:
        world.go_on(process)
    world.start_web()
    world.start_worker()
    hostile.take_copy_away(world)
    for machine in world.machines:
        hostile.join_anew(world, machine)


# -- what must hold --------------------------------------------------------------------------------------------------


def _wishes(world: World, judge: "Judge") -> None:
    judge.wish("a", replicas=world.chance.randint(1, 3), cards=world.chance.choice([1, 2]))
    if world.chance.random() < 0.5:
        judge.wish("group", nodes=2, cards=4)
    judge.wish("b", replicas=world.chance.randint(1, 3), cards=world.chance.choice([1, 2, 4]))


#: Of these silence can make lost ones.
_JUDGED = (NodeStatus.JOINING, NodeStatus.READY, NodeStatus.UNREACHABLE)


class Judge:
    """Looks at every step; what only a person's wish or a lost node explains is not held against the fleet."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.wished: dict[str, dict[str, int]] = {}
        self.touched: dict[int, int] = {}  # replicas that someone stopped, started or restarted, at which attempt
        self.excused: set[str] = set()  # nodes whose ledger was lost, or that were deleted
        self.deleted: set[str] = set()  # nodes, by a person, who says so that nothing is there any more
        self._judged = 0
        self._cordoned: frozenset[int] = frozenset()  # nodes, at the last look
        self._newest_shard = 0
        self._looked_at = -1

    def wish(self, name: str, **changes: int) -> None:
        new = {"replicas": 1, "cards": 1, "revision": 1, "nodes": 1, **self.wished.get(name, {}), **changes}
        if self._world.database_away or self._world.database_full:
            return
        with contextlib.suppress(FleetError):  # it is deleted, and still leaves
            self._world.wish(name, **new)
            self.wished[name] = new

    def look(self) -> None:
        """Engines that were told to end while they were healthy, one by one."""
        if self._world.kernel.broken:
            raise Broken(self._world.kernel.broken[0])
        ended = self._world.kernel.ended
        for engine in ended[self._judged :]:
            self._judge_end(engine)
        self._judged = len(ended)
        while self._world.kernel.doubled:
            self._judge_double(*self._world.kernel.doubled.pop())
        self._look_at_placements()

    def look_at_losses(self, before: dict[int, str]) -> None:
        """No node is given up before its time, nor while most of the fleet is silent."""
        lost = {pk for pk, status in self._world.statuses().items() if status == NodeStatus.LOST}
        if not any(before.get(pk) in _JUDGED for pk in lost):
            return
        fleet, now = self._world.fleet, self._world.database_now()
        judged = Node.objects.filter(pk__in=[pk for pk, status in before.items() if status in _JUDGED])
        silence = {node.pk: (now - node.last_seen_at).total_seconds() for node in judged if node.last_seen_at}
        lost &= silence.keys()
        if early := [pk for pk in lost if silence[pk] < fleet["lost_after_seconds"]]:
            raise Broken(f"node {early[0]} was given up after {silence[early[0]]:.1f} s of silence")
        silent = sum(seconds >= fleet["unreachable_after_seconds"] for seconds in silence.values())
        if lost and silent >= fleet["brake_nodes"] and silent >= fleet["brake_share"] * len(silence):
            raise Broken(f"node {lost.pop()} was given up while {silent} of {len(silence)} nodes were silent")

    def _look_at_placements(self) -> None:
        """In the database's own language: it is asked four times a second, and nearly always in vain."""
        if self._looked_at == self._world.changes:
            return
        self._looked_at = self._world.changes
        with connection.cursor() as cursor:
            cursor.execute("SELECT id FROM fleet_node WHERE NOT schedulable")
            cordoned = frozenset(pk for (pk,) in cursor.fetchall())
            cursor.execute("SELECT id, node_id FROM fleet_shard WHERE id > %s ORDER BY id", [self._newest_shard])
            new = cursor.fetchall()
        for shard, node in new:
            self._newest_shard = shard
            if node in cordoned & self._cordoned:
                raise Broken(f"shard {shard} was placed on node {node}, which is cordoned")
        self._cordoned = cordoned

    def _judge_double(self, engine: EngineProcess, other: EngineProcess) -> None:
        """One shard on two nodes: only where that of the older attempt was given up for lost, or deleted.

        That one may even be started last: by an agent that was paused with the order in its hands.
        """
        older = min(engine, other, key=lambda each: each.epoch).node
        if self._world.copy is not None and Event.objects.filter(kind="node_rebooted", node__name=older).exists():
            return  # it was silent when its copy came, which looks like a reboot
        if older not in self.deleted and not Event.objects.filter(kind="node_lost", node__name=older).exists():
            raise Broken(f"{engine.node}: {engine.label} was started while {other.label} lives on {other.node}")

    def _judge_end(self, engine: EngineProcess) -> None:
        uid, _, rank = engine.shard.rpartition("/")
        replica = Replica.objects.select_related("model", "revision").filter(uid=uid).first()
        if replica is None or replica.wish != ReplicaWish.RUN or engine.epoch <= self.touched.get(replica.pk, -1):
            return
        if engine.revision != _revision(replica.model) or engine.node in self.excused:
            return
        attempt = Shard.objects.filter(replica=replica, epoch=engine.epoch)
        if self.deleted and attempt.count() < self.wished[replica.model.name]["nodes"]:
            return  # a rank's node was given up for lost and deleted since, and its row with it
        if Event.objects.filter(kind="node_lost", node__shards__in=attempt).exists():
            return
        if attempt.filter(pk__in=self._world.drained).exists():
            return  # a drain told it to stop while it lasted: all of it leaves, wherever its other ranks are
        others = attempt.exclude(rank=int(rank))
        if any(each.state in ENDED_SHARD_STATES or each.state == ShardState.LOST for each in others):
            return  # a rank is gone, so the whole replica begins anew
        shard = attempt.filter(rank=int(rank)).first()
        if shard is not None and shard.state == ShardState.FAILED and shard.code != FailureCode.LOST_TRACK:
            return  # it did not become ready within its time, and that is why
        raise Broken(f"{engine.node}: the healthy {replica.label} ({engine.label}) was ended, and nothing asked for it")


async def settle(world: World, seconds: float) -> None:
    """Everything must become as wished, or say why not, within the healing time; and stay so."""
    until = world.loop.time() + seconds
    wrong = "nothing was looked at"
    while world.loop.time() < until:
        await world.sleep(2.0)
        wrong = unsettled(world)
        if not wrong:
            await world.sleep(6.0)
            if not (wrong := unsettled(world)):
                return
    raise Broken(f"not settled after {seconds:.0f} s: {wrong}")


def unsettled(world: World) -> str:
    """What still differs from the wish, or nothing."""
    for node in Node.objects.all():
        if node.status != NodeStatus.READY:
            return f"{node.name} is {node.status}"
    overdue = Shard.objects.filter(node__drain_deadline_at__lt=world.wall_now()).exclude(state__in=ENDED_SHARD_STATES)
    if overdue.exists():
        return f"{overdue[0].node.name} should be empty: its drain is over"
    running = {(e.node, e.label) for e in world.kernel.alive()}
    expected = set()
    for replica in Replica.objects.select_related("model").prefetch_related("shards__node"):
        if wrong := _of_replica(replica):
            return wrong
        expected |= {
            (shard.node.name, f"{replica.uid}/{shard.rank}@{shard.epoch}")
            for shard in replica.shards.all()
            if shard.state == ShardState.READY
        }
    if running != expected:
        return f"runs {sorted(running - expected)} without a row, and rows {sorted(expected - running)} without it"
    claims = GpuClaim.objects.filter(released_at__isnull=True, shard__state=ShardState.READY)
    held = sorted(claims.values_list("shard__node__name", "gpu__uuid"))
    used = sorted((engine.node, card) for engine in world.kernel.alive() for card in engine.gpus)
    if held != used:
        return f"engines use {used}, and their shards hold {held}"
    ended = Shard.objects.filter(state__in=ENDED_SHARD_STATES)
    if GpuClaim.objects.filter(released_at__isnull=True, shard__in=ended).exists():
        return "an ended shard holds cards"
    for model in CatalogModel.objects.all():
        if model.leaving:
            return f"{model.name} is deleted, and still there"
        kept = Replica.objects.filter(model=model).exclude(wish=ReplicaWish.REMOVE).count()
        if kept != model.replicas:
            return f"{model.name} has {kept} replicas, {model.replicas} are wished"
    return ""


def _revision(model: CatalogModel) -> int:
    """What its replicas should run: what they went back to when the newest failed, which its rollout says."""
    latest = model.rollouts.filter(target=model.revision).first()
    return latest.origin if latest is not None and latest.state == RolloutState.FAILED else model.revision


def _of_replica(replica: Replica) -> str:
    what = f"{replica.label} is {replica.state}: {replica.reason}"
    if replica.wish == ReplicaWish.STOP:
        return "" if replica.state == ReplicaState.STOPPED else what
    if replica.wish == ReplicaWish.REMOVE:
        return what
    if replica.state == ReplicaState.READY:
        return "" if replica.revision.number == _revision(replica.model) else f"{what} (an old revision)"
    if replica.state != ReplicaState.PENDING or not replica.explanation:
        return what
    found = place(snapshots.load(), parse_profile(replica.model.profile))
    return "" if isinstance(found, Refusal) else f"{what}, but placement finds {found.node_names}"
