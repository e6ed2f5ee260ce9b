"""Placements become attempts: claims, shards and orders, many at once. Within the caller's transaction.

All or none: when the database refuses one claim, the caller tries them one by one.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from django.db.models import F

from fleet import doorbell
from fleet.domain.actions import StartReplica
from fleet.domain.states import CommandKind, CommandState, NodeStatus, ReplicaState, ReplicaWish
from fleet.models import Command, Gpu, GpuClaim, Node, ProfileRevision, Replica, Shard
from fleet.services.events import record_all, written
from fleet.services.transitions import move_replicas


def start_all(actions: Sequence[StartReplica], now: datetime) -> int:
    """How many were started; those that have moved on since the decision are left out."""
    rows = Replica.objects.select_for_update(of=("self",)).select_related("model").in_bulk(a.replica for a in actions)
    due = [
        a for a in actions if (row := rows.get(a.replica)) and row.attempt == a.attempt and row.wish == ReplicaWish.RUN
    ]
    due = _where_it_may(due)
    if not due:
        return 0
    Shard.objects.filter(replica__in=[action.replica for action in due], wanted=True).update(wanted=False)
    _advance(due, rows)
    shards = _shards(due)
    _order(shards)
    record_all(
        written("replica_placed", _sentence(action, rows[action.replica]), action.replica, action.placement.head.node)
        for action in due
    )
    return len(due)


def _where_it_may(due: Sequence[StartReplica]) -> list[StartReplica]:
    """Those whose nodes and cards still take something new: one may have been cordoned or fallen silent since."""
    parts = [part for action in due for part in action.placement.shards]
    nodes = Node.objects.filter(pk__in={part.node for part in parts}, schedulable=True, status=NodeStatus.READY)
    cards = Gpu.objects.filter(pk__in={gpu for part in parts for gpu in part.gpus}, schedulable=False)
    open_nodes = set(nodes.values_list("pk", flat=True))
    shut = set(cards.values_list("pk", flat=True))
    return [a for a in due if all(p.node in open_nodes and shut.isdisjoint(p.gpus) for p in a.placement.shards)]


def _advance(due: Sequence[StartReplica], rows: dict[int, Replica]) -> None:
    """The rows' next attempt, one statement per revision."""
    numbers = {(rows[action.replica].model_id, action.revision) for action in due}
    found = ProfileRevision.objects.filter(model__in={model for model, _ in numbers}).values_list(
        "model", "number", "pk"
    )
    revisions = {(model, number): pk for model, number, pk in found}
    by_revision: dict[int, list[int]] = defaultdict(list)
    for action in due:
        by_revision[revisions[rows[action.replica].model_id, action.revision]].append(action.replica)
    for revision, keys in by_revision.items():
        move_replicas(
            keys,
            ReplicaState.STARTING,
            attempt=F("attempt") + 1,
            revision=revision,
            code="assigned",
            reason="placed; its agents have not answered yet",
            endpoint="",
            goal=None,
            explanation=None,
            restart_requested=False,
            drain_deadline_at=None,
            next_try_at=None,
        )


def _shards(due: Sequence[StartReplica]) -> list[Shard]:
    heads = {action.placement.head.node for action in due if action.rendezvous_port is not None}
    addresses = dict(Node.objects.filter(pk__in=heads).values_list("pk", "mgmt_addr"))
    parts = [(action, part) for action in due for part in action.placement.shards]
    shards = Shard.objects.bulk_create(
        Shard(
            replica_id=action.replica,
            rank=part.rank,
            node_id=part.node,
            epoch=action.attempt + 1,
            fabric_env=dict(part.fabric_env),
            rendezvous_address=_meeting(action, addresses),
            rendezvous_port=action.rendezvous_port,
        )
        for action, part in parts
    )
    claims = ((shard, gpu) for shard, (_, part) in zip(shards, parts, strict=True) for gpu in part.gpus)
    GpuClaim.objects.bulk_create(GpuClaim(gpu_id=gpu, shard=shard) for shard, gpu in claims)
    return shards


def _meeting(action: StartReplica, addresses: dict[int, str]) -> str:
    if action.rendezvous_port is None:
        return ""
    return action.placement.head_address or addresses[action.placement.head.node]


def _order(shards: Sequence[Shard]) -> None:
    nodes = {shard.node_id for shard in shards}
    Node.objects.filter(pk__in=nodes).update(desired_revision=F("desired_revision") + 1)
    revisions = dict(Node.objects.filter(pk__in=nodes).values_list("pk", "desired_revision"))
    Command.objects.bulk_create(
        Command(
            node_id=shard.node_id,
            shard=shard,
            kind=CommandKind.START,
            state=CommandState.OPEN,
            revision=revisions[shard.node_id],
            reason="placed",
        )
        for shard in shards
    )
    doorbell.ring_nodes(nodes)


def _sentence(action: StartReplica, replica: Replica) -> str:
    placement = action.placement
    cards = f" on {len(placement.gpus)} {placement.gpu_class}" if placement.gpus else ""
    return f"{replica.label}: attempt {action.attempt + 1} placed on {', '.join(placement.node_names)}{cards}"
