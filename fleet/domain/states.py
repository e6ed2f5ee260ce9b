"""Every state of the fleet and the only moves between them; the database's CHECKs, the admin and the docs read it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from agent_client.protocol.states import ShardState


class NodeStatus(StrEnum):
    JOINING = "joining"  # registered; nothing sent down was answered yet
    READY = "ready"
    UNREACHABLE = "unreachable"  # silent; nothing new is placed, its engines stay routable
    LOST = "lost"  # silent for long; its shards are lost and its claims released
    QUARANTINED = "quarantined"  # two machines use one identity; a person must act


class ReplicaState(StrEnum):
    PENDING = "pending"  # not placed, and the explanation says why
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"  # waits for its next try
    DEGRADED = "degraded"  # a rank is gone; the whole replica restarts
    LOST = "lost"  # its node went; it is placed elsewhere


class ReplicaWish(StrEnum):
    """What people and the catalog want of a replica."""

    RUN = "run"
    STOP = "stop"  # stop and keep the row: an operator's stop
    REMOVE = "remove"  # stop and delete: scaled down, or its model is gone


class CommandKind(StrEnum):
    START = "start"
    STOP = "stop"
    DRAIN = "drain"


class CommandState(StrEnum):
    OPEN = "open"  # to be delivered until it is answered
    DONE = "done"
    REFUSED = "refused"  # the agent said no, with a reason
    DROPPED = "dropped"  # overtaken by a newer order, or its shard ended


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


E = TypeVar("E", bound=StrEnum)
S = ShardState
N = NodeStatus
R = ReplicaState

NODE_TRANSITIONS: Mapping[NodeStatus, frozenset[NodeStatus]] = {
    N.JOINING: frozenset({N.READY, N.UNREACHABLE, N.QUARANTINED}),
    N.READY: frozenset({N.UNREACHABLE, N.QUARANTINED}),
    N.UNREACHABLE: frozenset({N.READY, N.LOST, N.QUARANTINED}),
    N.LOST: frozenset({N.READY, N.QUARANTINED}),
    N.QUARANTINED: frozenset({N.JOINING}),
}

# An agent reports what it sees, and reports may be lost: so from each live state all later ones can be reached.
_RUNNING = frozenset({S.VALIDATING, S.LAUNCHING, S.LOADING, S.READY, S.DRAINING, S.STOPPING})
_ENDING = frozenset({S.STOPPING, S.STOPPED, S.FAILED, S.STOP_STUCK, S.LOST})
SHARD_TRANSITIONS: Mapping[ShardState, frozenset[ShardState]] = {
    S.ASSIGNED: _RUNNING | _ENDING,
    S.VALIDATING: (_RUNNING | _ENDING) - {S.VALIDATING},
    S.LAUNCHING: (_RUNNING | _ENDING) - {S.VALIDATING, S.LAUNCHING},
    S.LOADING: frozenset({S.READY, S.DRAINING}) | _ENDING,
    S.READY: frozenset({S.LOADING, S.DRAINING}) | _ENDING,  # loading: a restarted agent proves it again
    S.DRAINING: frozenset({S.READY}) | _ENDING,  # ready: the drain was cancelled
    S.STOPPING: _ENDING - {S.STOPPING},
    S.STOP_STUCK: frozenset({S.STOPPED, S.FAILED, S.STOPPING, S.LOST}),
    S.LOST: _RUNNING | frozenset({S.STOPPED, S.FAILED, S.STOP_STUCK}),  # taken back, or seen to have ended
    S.STOPPED: frozenset(),
    S.FAILED: frozenset(),
}

# Replica states are computed from facts in both directions (domain/replica_state), so each can follow each.
REPLICA_TRANSITIONS: Mapping[ReplicaState, frozenset[ReplicaState]] = {state: frozenset(R) - {state} for state in R}


def sources(table: Mapping[E, frozenset[E]], target: E) -> frozenset[E]:
    """The states from which `target` can be reached."""
    return frozenset(state for state, targets in table.items() if target in targets)
