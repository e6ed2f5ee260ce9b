"""What each action of a tick does to the rows. Within the caller's transaction; False: the fleet has moved on."""

from datetime import datetime
from typing import assert_never

from django.db.models import Q

from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet import doorbell
from fleet.domain.actions import (
    Action,
    AskNode,
    CreateReplica,
    DeleteReplica,
    DrainShard,
    EndRollout,
    Explain,
    GiveUpShard,
    NodeDrained,
    RemoveReplica,
    SetGoal,
    StartReplica,
    StopShard,
)
from fleet.domain.reasons import is_news
from fleet.domain.states import CommandKind, ReplicaWish, Severity
from fleet.models import Node, Replica, Shard
from fleet.services import commands, creating, rollouts, starting
from fleet.services.drains import lasting
from fleet.services.events import record
from fleet.services.replicas import recompute


def carry_out(action: Action, now: datetime) -> bool:
    """Whether anything changed that may make room for another action."""
    match action:
        case CreateReplica():
            return creating.create_all([action], now) == 1
        case RemoveReplica():
            return _remove(action)
        case DeleteReplica(replica=replica_id):
            return _delete(replica_id)
        case SetGoal():
            return _set_goal(action)
        case StopShard():
            return _stop(action, now)
        case DrainShard():
            return _drain(action, now)
        case GiveUpShard():
            return _give_up(action, now)
        case StartReplica():
            return starting.start_all([action], now) == 1
        case Explain():
            return _explain(action, now)
        case AskNode():
            return rollouts.ask(action)
        case EndRollout():
            return rollouts.end(action.rollout, action.state, reason=action.reason)
        case NodeDrained(node=node_id):
            return _node_drained(node_id)
        case _:
            assert_never(action)


def _remove(action: RemoveReplica) -> bool:
    rows = Replica.objects.filter(pk=action.replica).exclude(wish=ReplicaWish.REMOVE)
    if rows.update(wish=ReplicaWish.REMOVE) != 1:
        return False
    replica = Replica.objects.select_related("model").get(pk=action.replica)
    record("replica_going", f"{replica.label} is to end: {action.reason}", replica_id=replica.pk)
    return True


def _delete(replica_id: int) -> bool:
    live = Shard.objects.filter(replica_id=replica_id).exclude(state__in=ENDED_SHARD_STATES)
    replica = Replica.objects.select_for_update().select_related("model").filter(pk=replica_id).first()
    if replica is None or live.exists():
        return False
    record("replica_removed", f"{replica.label} removed")
    model = replica.model
    replica.delete()
    if model.leaving and not Replica.objects.filter(model=model).exists():
        record("model_deleted", f"{model.name} deleted")
        model.delete()
        doorbell.ring_routes()
    return True


def _set_goal(action: SetGoal) -> bool:
    replica = Replica.objects.select_for_update().select_related("revision").filter(pk=action.replica).first()
    goal = None if replica is None or replica.revision.number == action.revision else action.revision
    if replica is None or replica.goal == goal:
        return False
    Replica.objects.filter(pk=replica.pk).update(goal=goal)
    return True


def _wanted(shard_id: int) -> Shard | None:
    shard = Shard.objects.select_for_update().select_related("replica__model").filter(pk=shard_id, wanted=True).first()
    return None if shard is None or shard.state in ENDED_SHARD_STATES else shard


def _stop(action: StopShard, now: datetime) -> bool:
    shard = _wanted(action.shard)
    if shard is None or (action.drained and not _leaves(shard.replica_id)):
        return False
    if shard.state == ShardState.LOST:
        Shard.objects.filter(pk=shard.pk).update(wanted=False)  # nobody is there to stop it; desired state will
        return True
    commands.order(shard=shard, kind=CommandKind.STOP, reason=action.reason)
    recompute(shard.replica_id, now=now)
    return True


def _leaves(replica_id: int) -> bool:
    """Whether a node or card that it is on is still to be drained: a drain that was cancelled ends nothing more."""
    node = Q(node__drain_deadline_at__isnull=False)
    card = Q(claims__released_at__isnull=True, claims__gpu__drain_deadline_at__isnull=False)
    return Shard.objects.filter(node | card, replica=replica_id).exclude(state__in=ENDED_SHARD_STATES).exists()


def _drain(action: DrainShard, now: datetime) -> bool:
    shard = _wanted(action.shard)
    if shard is None or shard.draining:
        return False
    until = lasting(action.deadline_at - now, now)
    Shard.objects.filter(pk=shard.pk).update(**until)
    shard.drain_deadline_at = action.deadline_at
    commands.order(shard=shard, kind=CommandKind.DRAIN, reason=action.reason)
    seconds = (action.deadline_at - now).total_seconds()
    text = f"{shard.replica.label} drains for at most {seconds:.0f} s: {action.reason}"
    record("replica_drains", text, replica_id=shard.replica_id, node_id=shard.node_id)
    recompute(shard.replica_id, now=now)
    return True


def _give_up(action: GiveUpShard, now: datetime) -> bool:
    """The verdict stands on the shard, so that it counts as a failure however its engine ends."""
    shard = _wanted(action.shard)
    if shard is None:
        return False
    Shard.objects.filter(pk=shard.pk).update(verdict_code=action.code, verdict=action.reason)
    commands.order(shard=shard, kind=CommandKind.STOP, reason=action.reason)
    seen = {
        "code": action.code,
        "attempt": shard.epoch,
        "state": shard.state,
        "phase": shard.phase,
        "progress": shard.progress,
        "running": shard.running,
        "waiting": shard.waiting,
        "stalled_at": shard.stalled_at.isoformat() if shard.stalled_at else None,
        "pids": shard.pids,
    }
    record(
        "replica_given_up",
        action.reason,
        severity=Severity.ERROR,
        replica_id=shard.replica_id,
        node_id=shard.node_id,
        data=seen,
    )
    recompute(shard.replica_id, now=now)
    return True


def _explain(action: Explain, now: datetime) -> bool:
    replica = Replica.objects.select_related("model").get(pk=action.replica)
    told = replica.explanation
    Replica.objects.filter(pk=replica.pk).update(explanation=action.refusal.to_json(), restart_requested=False)
    if is_news(action.refusal, told):
        record("replica_unplaced", f"{replica.label}: {action.refusal.text}", replica_id=replica.pk)
    recompute(replica.pk, now=now)
    return replica.replaces_id is not None  # a substitute without a place goes; else it made no room for anything


def _node_drained(node_id: int) -> bool:
    """Nothing of ours runs there any more. It stays cordoned until a person says otherwise."""
    node = Node.objects.select_for_update().filter(pk=node_id, drain_deadline_at__isnull=False).first()
    if node is None or Shard.objects.filter(node=node).exclude(state__in=ENDED_SHARD_STATES).exists():
        return False
    Node.objects.filter(pk=node_id).update(drain_deadline_at=None)
    record("node_drained", f"{node.name} is drained: nothing of ours runs there; it stays cordoned", node_id=node_id)
    return False
