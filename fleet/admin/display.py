"""How states look: a colour for each, and never the colour alone."""

from typing import Any

from agent_client.protocol.states import ShardState
from fleet.domain.states import CommandState, NodeStatus, ReplicaState, Severity

#: unfold's label colours: success, info, warning, danger, and default.
COLOURS: dict[Any, str] = {
    NodeStatus.JOINING: "info",
    NodeStatus.READY: "success",
    NodeStatus.UNREACHABLE: "warning",
    NodeStatus.LOST: "danger",
    NodeStatus.QUARANTINED: "danger",
    ReplicaState.PENDING: "warning",
    ReplicaState.STARTING: "info",
    ReplicaState.READY: "success",
    ReplicaState.DRAINING: "info",
    ReplicaState.STOPPED: "default",
    ReplicaState.FAILED: "danger",
    ReplicaState.DEGRADED: "warning",
    ReplicaState.LOST: "danger",
    ShardState.ASSIGNED: "info",
    ShardState.VALIDATING: "info",
    ShardState.LAUNCHING: "info",
    ShardState.LOADING: "info",
    ShardState.READY: "success",
    ShardState.DRAINING: "info",
    ShardState.STOPPING: "info",
    ShardState.STOPPED: "default",
    ShardState.FAILED: "danger",
    ShardState.STOP_STUCK: "danger",
    ShardState.LOST: "danger",
    CommandState.OPEN: "info",
    CommandState.DONE: "success",
    CommandState.REFUSED: "danger",
    CommandState.DROPPED: "default",
    Severity.INFO: "default",
    Severity.WARNING: "warning",
    Severity.ERROR: "danger",
}
#: The same by word, as unfold's `display(label=…)` takes it.
LABELS = {str(state): colour for state, colour in COLOURS.items()}
