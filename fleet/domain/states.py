"""Every state of the fleet and the only moves between them; the database's CHECKs, the admin and the docs read it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from agent_client.protocol.states import ShardState

#: The code of what ended with its machine: no failure of the engine's.
NODE_REBOOTED = "node_rebooted"


class NodeStatus(StrEnum):
    JOINING = "joining"
    READY = "ready"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    QUARANTINED = "quarantined"


class ReplicaState(StrEnum):
    PENDING = "pending"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"
    DEGRADED = "degraded"
    LOST = "lost"


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


class RolloutState(StrEnum):
    """Of the way from one revision of a profile to the next."""

    ROLLING = "rolling"
    PAUSED = "paused"
    FAILED = "failed"
    DONE = "done"
    DROPPED = "dropped"


class CheckState(StrEnum):
    """Of a question to a node: could you run this? Nothing is started for it."""

    OPEN = "open"
    PASSED = "passed"
    REFUSED = "refused"
    SKIPPED = "skipped"  # its agent is too old to be asked


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

ROLLOUT_TRANSITIONS: Mapping[RolloutState, frozenset[RolloutState]] = {
    RolloutState.ROLLING: frozenset(
        {RolloutState.PAUSED, RolloutState.FAILED, RolloutState.DONE, RolloutState.DROPPED}
    ),
    RolloutState.PAUSED: frozenset({RolloutState.ROLLING, RolloutState.FAILED, RolloutState.DROPPED}),
    RolloutState.FAILED: frozenset(),
    RolloutState.DONE: frozenset(),
    RolloutState.DROPPED: frozenset(),
}

CHECK_TRANSITIONS: Mapping[CheckState, frozenset[CheckState]] = {
    CheckState.OPEN: frozenset(CheckState) - {CheckState.OPEN},
    CheckState.PASSED: frozenset(),
    CheckState.REFUSED: frozenset(),
    CheckState.SKIPPED: frozenset(),
}

# What each state tells a person; docs/states.md is drawn from it. One table each: equal words of two enums are one key.
NODE_MEANINGS: Mapping[NodeStatus, str] = {
    N.JOINING: "registered, but nothing that was sent down its stream has been answered yet",
    N.READY: "its stream works in both directions",
    N.UNREACHABLE: "silent: nothing new is placed on it, and its engines stay routable",
    N.LOST: "silent for long: its shards count as lost, its claims are released",
    N.QUARANTINED: "two machines use its identity; a person must act",
}
SHARD_MEANINGS: Mapping[ShardState, str] = {
    S.ASSIGNED: "placed, and its order is written; the agent has not answered yet",
    S.VALIDATING: "the agent checks programs, files, cards, ports and policy",
    S.LAUNCHING: "the engine's process is being started",
    S.LOADING: "the process runs and does not answer yet",
    S.READY: "it gave a real answer",
    S.DRAINING: "no new requests; the running ones may end",
    S.STOPPING: "asked to end, and killed after its grace",
    S.STOPPED: "ended because it was told to",
    S.FAILED: "refused or ended by itself; code, sentence and last lines are kept",
    S.STOP_STUCK: "told to end, but processes are still there; the report names them",
    S.LOST: "its node has not been heard for long; said by the server alone",
}
REPLICA_MEANINGS: Mapping[ReplicaState, str] = {
    R.PENDING: "not placed; its explanation says why",
    R.STARTING: "placed; at least one shard is not ready yet",
    R.READY: "every shard is ready: it is routable",
    R.DRAINING: "it leaves when its requests have ended",
    R.STOPPED: "nothing of it runs, as wished",
    R.FAILED: "it failed and waits for its next try",
    R.DEGRADED: "a rank is gone; the whole replica restarts as its next attempt",
    R.LOST: "its node went; it is placed elsewhere",
}
ROLLOUT_MEANINGS: Mapping[RolloutState, str] = {
    RolloutState.ROLLING: "replicas go over to the new revision, one after another",
    RolloutState.PAUSED: "nothing more goes over until a person resumes it",
    RolloutState.FAILED: "the new revision failed, or a person rolled it back: all go back to the old one",
    RolloutState.DONE: "every replica runs the new revision",
    RolloutState.DROPPED: "a newer revision took its place",
}


def sources(table: Mapping[E, frozenset[E]], target: E) -> frozenset[E]:
    """The states from which `target` can be reached."""
    return frozenset(state for state, targets in table.items() if target in targets)
