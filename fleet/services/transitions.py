"""The one door for state: compare-and-set by the tables of domain/states. Nothing else writes these columns."""

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Now

from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet.domain.states import (
    CHECK_TRANSITIONS,
    NODE_TRANSITIONS,
    REPLICA_TRANSITIONS,
    ROLLOUT_TRANSITIONS,
    SHARD_TRANSITIONS,
    CheckState,
    CommandState,
    NodeStatus,
    ReplicaState,
    RolloutState,
    sources,
)
from fleet.models import Command, DryCheck, Node, Replica, Rollout, Shard
from fleet.services.errors import StaleTransition


def move_node(node_id: int, target: NodeStatus, *, reason: str = "", **fields: Any) -> None:
    """Raises StaleTransition when the node's status does not lead to `target`."""
    rows = Node.objects.filter(pk=node_id, status__in=sources(NODE_TRANSITIONS, target))
    if target is NodeStatus.READY:
        fields["loss_accepted"] = False  # it is heard again
    _move(rows, "node", node_id, target, status=target, status_reason=reason, status_at=Now(), **fields)


def move_shard(shard_id: int, target: ShardState, **fields: Any) -> None:
    """Raises StaleTransition when the shard's state does not lead to `target`. Its orders end with it."""
    rows = Shard.objects.filter(pk=shard_id, state__in=sources(SHARD_TRANSITIONS, target))
    _move(rows, "shard", shard_id, target, state=target, state_at=Now(), **fields)
    if target in ENDED_SHARD_STATES or target is ShardState.LOST:
        # Delivered late, a start would put an engine on cards that are another's by then.
        orders = Command.objects.filter(shard_id=shard_id, state=CommandState.OPEN)
        orders.update(state=CommandState.DROPPED, answered_at=Now())


def move_replica(replica_id: int, target: ReplicaState, *, attempt: int | None = None, **fields: Any) -> None:
    """Raises StaleTransition when the state does not lead to `target`, or the replica is no longer at `attempt`."""
    rows = Replica.objects.filter(pk=replica_id, state__in=sources(REPLICA_TRANSITIONS, target))
    if attempt is not None:
        rows = rows.filter(attempt=attempt)
    _move(rows, "replica", replica_id, target, state=target, state_at=Now(), **fields)


def move_replicas(replica_ids: Sequence[int], target: ReplicaState, **fields: Any) -> None:
    """Many that the caller has locked, in one statement; raises StaleTransition when one of them is not to be moved."""
    may = {*sources(REPLICA_TRANSITIONS, target), target}
    rows = Replica.objects.filter(pk__in=replica_ids, state__in=may)
    if rows.update(state=target, state_at=Now(), **fields) != len(replica_ids):
        raise StaleTransition("stale_transition", f"cannot move replicas to {target}: a state has changed since")


def move_rollout(rollout_id: int, target: RolloutState, *, reason: str = "") -> None:
    """Raises StaleTransition when the rollout's state does not lead to `target`."""
    rows = Rollout.objects.filter(pk=rollout_id, state__in=sources(ROLLOUT_TRANSITIONS, target))
    _move(rows, "rollout", rollout_id, target, state=target, state_at=Now(), reason=reason)


def move_check(check_id: int, target: CheckState, **fields: Any) -> None:
    """Raises StaleTransition when the question has been answered before."""
    rows = DryCheck.objects.filter(pk=check_id, state__in=sources(CHECK_TRANSITIONS, target))
    _move(rows, "check", check_id, target, state=target, **fields)


def _move(rows: QuerySet[Any], what: str, key: int, target: str, **values: Any) -> None:
    if rows.update(**values) != 1:
        raise StaleTransition("stale_transition", f"cannot move {what} {key} to {target}: its state has changed since")
