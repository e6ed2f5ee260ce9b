"""What operators do: cordon, stop, restart. Each is one wish or flag and one event; the reconciler does the rest."""

from datetime import datetime, timedelta

from django.db import transaction

from agent_client.profile import ProfileError, parse_profile
from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet import doorbell
from fleet.domain.states import NodeStatus, ReplicaWish
from fleet.models import AgentSession, Gpu, Node, Replica, Shard
from fleet.services.commands import DEFAULT_DRAIN_SECONDS
from fleet.services.drains import LONGEST_DRAIN_SECONDS, lasting
from fleet.services.errors import FleetError
from fleet.services.events import record
from fleet.services.nodes import TURNED_AWAY
from fleet.services.replicas import recompute
from fleet.services.transitions import move_node

NODE_DRAIN_SECONDS = 3600.0  # unless somebody says otherwise


@transaction.atomic
def cordon_node(*, node: Node, reason: str, actor: str) -> None:
    """Place nothing new there; what runs goes on."""
    _there(node.name, Node.objects.filter(pk=node.pk).update(schedulable=False, cordon_reason=reason[:500]))
    record("node_cordoned", f"{node.name} cordoned" + (f": {reason}" if reason else ""), actor=actor, node_id=node.pk)


@transaction.atomic
def uncordon_node(*, node: Node, actor: str) -> None:
    fresh = {"schedulable": True, "cordon_reason": "", "drain_deadline_at": None, "damped_until": None, "returns": 0}
    _there(node.name, Node.objects.filter(pk=node.pk).update(**fresh))
    record("node_uncordoned", f"{node.name} uncordoned", actor=actor, node_id=node.pk)
    doorbell.ring_reconcile()


@transaction.atomic
def cordon_gpu(*, gpu: Gpu, cordoned: bool, reason: str, actor: str) -> None:
    why = reason[:500] if cordoned else ""
    rows = Gpu.objects.filter(pk=gpu.pk)
    _there(gpu.uuid, rows.update(schedulable=not cordoned, cordon_reason=why, drain_deadline_at=None))
    verb = "cordoned" if cordoned else "uncordoned"
    record(f"gpu_{verb}", f"{gpu.node.name} GPU {gpu.index} {verb}", actor=actor, node_id=gpu.node_id)
    doorbell.ring_reconcile()


@transaction.atomic
def drain_node(*, node: Node, deadline_seconds: float, reason: str, actor: str, now: datetime) -> None:
    """Cordon it and move its replicas away; each goes when its replacement is ready, or at the deadline."""
    until = lasting(_seconds(deadline_seconds), now)
    why = (reason or "it is drained")[:500]
    rows = Node.objects.filter(pk=node.pk)
    _there(node.name, rows.update(schedulable=False, cordon_reason=why, **until))
    text = f"{node.name} is to be drained by {until['drain_deadline_at']:%Y-%m-%d %H:%M:%S} UTC" + (
        f": {reason}" if reason else ""
    )
    record("node_drain", text, actor=actor, node_id=node.pk)
    doorbell.ring_reconcile()


@transaction.atomic
def cancel_drain(*, node: Node, actor: str) -> None:
    """What was not told to stop yet stays; the node stays cordoned until it is uncordoned.

    A stop that is on its way is final: whether it arrived is not known. Its replica starts anew where there is room.
    """
    if Node.objects.filter(pk=node.pk, drain_deadline_at__isnull=False).update(drain_deadline_at=None) != 1:
        raise FleetError("not_draining", f"cannot cancel the drain of {node.name}: it is not being drained")
    record("node_drain_cancelled", f"the drain of {node.name} is cancelled", actor=actor, node_id=node.pk)
    doorbell.ring_reconcile()


@transaction.atomic
def drain_gpu(*, gpu: Gpu, deadline_seconds: float, reason: str, actor: str, now: datetime) -> None:
    """Cordon one card and move what uses it away, as a node's drain does."""
    until = lasting(_seconds(deadline_seconds), now)
    why = (reason or "it is drained")[:500]
    rows = Gpu.objects.filter(pk=gpu.pk)
    _there(gpu.uuid, rows.update(schedulable=False, cordon_reason=why, **until))
    text = f"{gpu.node.name} GPU {gpu.index} is to be drained by {until['drain_deadline_at']:%Y-%m-%d %H:%M:%S} UTC"
    record("gpu_drain", text + (f": {reason}" if reason else ""), actor=actor, node_id=gpu.node_id)
    doorbell.ring_reconcile()


@transaction.atomic
def release_quarantine(*, node: Node, actor: str) -> None:
    """The copy is gone: the next registration is believed again."""
    if node.status != NodeStatus.QUARANTINED:
        raise FleetError("not_quarantined", f"cannot release {node.name}: it is not quarantined")
    move_node(node.pk, NodeStatus.JOINING, past_boots=[], boot_id="")
    AgentSession.objects.filter(node=node, close_reason__startswith=TURNED_AWAY).delete()
    record("node_released", f"{node.name} released from quarantine", actor=actor, node_id=node.pk)


@transaction.atomic
def delete_node(*, node: Node, actor: str, now: datetime) -> None:
    """Forget a machine that is gone. Refused while anything of a replica may run there."""
    shards = Shard.objects.filter(node=node).select_related("replica__model")
    live = [shard for shard in shards if shard.state not in ENDED_SHARD_STATES and shard.state != ShardState.LOST]
    if live:
        names = ", ".join(sorted({shard.replica.label for shard in live}))
        hint = "cordon it and stop what runs there first, or wait until the node is lost"
        raise FleetError("node_in_use", f"cannot delete {node.name}: it holds {names}", hint)
    replicas = {shard.replica_id for shard in shards}
    Node.objects.filter(pk=node.pk).delete()
    for replica_id in replicas:
        recompute(replica_id, now=now)
    record("node_deleted", f"{node.name} deleted", actor=actor)
    doorbell.ring_reconcile()
    doorbell.ring_nodes([node.pk])


@transaction.atomic
def set_wish(*, replica: Replica, wish: ReplicaWish, actor: str, now: datetime, drain_seconds: float = 0.0) -> None:
    """`stop` keeps the replica stopped until someone says `run` again; its requests have `drain_seconds` to end."""
    if replica.wish == ReplicaWish.REMOVE:
        raise FleetError("being_removed", f"cannot {wish} {replica.label}: it is being removed")
    until = lasting(_seconds(drain_seconds), now) if wish is ReplicaWish.STOP else {"drain_deadline_at": None}
    rows = Replica.objects.filter(pk=replica.pk).exclude(wish=ReplicaWish.REMOVE)
    _there(replica.label, rows.update(wish=wish, **until))
    verb = "started" if wish is ReplicaWish.RUN else "drained and stopped" if drain_seconds else "stopped"
    kind = "started" if wish is ReplicaWish.RUN else "stopped"
    record(f"replica_{kind}_by_wish", f"{replica.label} is to be {verb}", actor=actor, replica_id=replica.pk)
    doorbell.ring_routes()  # first: it costs little, and clients wait for it
    recompute(replica.pk, now=now)  # one of which nothing runs has no agent that would report
    doorbell.ring_reconcile()


@transaction.atomic
def drain_replica(*, replica: Replica, actor: str, now: datetime, deadline_seconds: float | None = None) -> None:
    """Take one replica out without cutting an answer: nothing new, then the end. By default in the profile's time."""
    seconds = drain_time(replica) if deadline_seconds is None else deadline_seconds
    set_wish(replica=replica, wish=ReplicaWish.STOP, actor=actor, now=now, drain_seconds=seconds)


@transaction.atomic
def restart_replica(*, replica: Replica, actor: str, now: datetime, drain_seconds: float = 0.0) -> None:
    """Stop the running attempt and start the next; a wait after crashes is cut short."""
    if replica.wish != ReplicaWish.RUN:
        raise FleetError("not_running", f"cannot restart {replica.label}: it is not wished to run")
    until = lasting(_seconds(drain_seconds), now)
    rows = Replica.objects.filter(pk=replica.pk, wish=ReplicaWish.RUN)
    _there(replica.label, rows.update(restart_requested=True, next_try_at=None, **until))
    record("replica_restart", f"{replica.label} is to be restarted", actor=actor, replica_id=replica.pk)
    doorbell.ring_reconcile()


def drain_time(replica: Replica) -> float:
    """Seconds that its profile gives a drain."""
    try:
        return float(parse_profile(replica.revision.profile).drain_timeout_seconds)
    except ProfileError:
        return DEFAULT_DRAIN_SECONDS


def _there(name: str, changed: int) -> None:
    """It was read a moment ago, and others act, too: what is gone by now has no event either."""
    if changed != 1:
        raise FleetError("gone", f"cannot change {name}: it was deleted, or is being removed, by now")


def _seconds(given: float) -> timedelta:
    if not 0 <= given <= LONGEST_DRAIN_SECONDS:
        raise FleetError("bad_deadline", f"cannot use a deadline of {given:g} s: give 0 to {LONGEST_DRAIN_SECONDS} s")
    return timedelta(seconds=given)
