"""What operators do: cordon, stop, restart. Each is one wish or flag and one event; the reconciler does the rest."""

from datetime import datetime

from django.db import transaction
from django.utils import timezone

from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet import doorbell
from fleet.domain.states import NodeStatus, ReplicaWish
from fleet.models import Gpu, Node, Replica, Shard
from fleet.services.errors import FleetError
from fleet.services.events import record
from fleet.services.replicas import recompute
from fleet.services.transitions import move_node


@transaction.atomic
def cordon_node(*, node: Node, reason: str, actor: str) -> None:
    """Place nothing new there; what runs goes on."""
    Node.objects.filter(pk=node.pk).update(schedulable=False, cordon_reason=reason[:500])
    record("node_cordoned", f"{node.name} cordoned" + (f": {reason}" if reason else ""), actor=actor, node_id=node.pk)


@transaction.atomic
def uncordon_node(*, node: Node, actor: str) -> None:
    Node.objects.filter(pk=node.pk).update(schedulable=True, cordon_reason="")
    record("node_uncordoned", f"{node.name} uncordoned", actor=actor, node_id=node.pk)
    doorbell.ring_reconcile()


@transaction.atomic
def cordon_gpu(*, gpu: Gpu, cordoned: bool, reason: str, actor: str) -> None:
    Gpu.objects.filter(pk=gpu.pk).update(schedulable=not cordoned, cordon_reason=reason[:500] if cordoned else "")
    verb = "cordoned" if cordoned else "uncordoned"
    record(f"gpu_{verb}", f"{gpu.node.name} GPU {gpu.index} {verb}", actor=actor, node_id=gpu.node_id)
    doorbell.ring_reconcile()


@transaction.atomic
def release_quarantine(*, node: Node, actor: str) -> None:
    """The copy is gone: the next registration is believed again."""
    if node.status != NodeStatus.QUARANTINED:
        raise FleetError("not_quarantined", f"cannot release {node.name}: it is not quarantined")
    move_node(node.pk, NodeStatus.JOINING, past_boots=[], boot_id="")
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
def set_wish(*, replica: Replica, wish: ReplicaWish, actor: str) -> None:
    """`stop` keeps the replica stopped until someone says `run` again."""
    if replica.wish == ReplicaWish.REMOVE:
        raise FleetError("being_removed", f"cannot {wish} {replica.label}: it is being removed")
    Replica.objects.filter(pk=replica.pk).update(wish=wish)
    verb = "stopped" if wish is ReplicaWish.STOP else "started"
    record(f"replica_{verb}_by_wish", f"{replica.label} is to be {verb}", actor=actor, replica_id=replica.pk)
    recompute(replica.pk, now=timezone.now())  # one of which nothing runs has no agent that would report
    doorbell.ring_reconcile()
    doorbell.ring_routes()


@transaction.atomic
def restart_replica(*, replica: Replica, actor: str) -> None:
    """Stop the running attempt and start the next; a wait after crashes is cut short."""
    if replica.wish != ReplicaWish.RUN:
        raise FleetError("not_running", f"cannot restart {replica.label}: it is not wished to run")
    Replica.objects.filter(pk=replica.pk).update(restart_requested=True, next_try_at=None)
    record("replica_restart", f"{replica.label} is to be restarted", actor=actor, replica_id=replica.pk)
    doorbell.ring_reconcile()
