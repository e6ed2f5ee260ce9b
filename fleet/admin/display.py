"""How states look: a colour for each, and never the colour alone."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from agent_client.protocol.states import ShardState
from fleet.domain.states import CheckState, CommandState, NodeStatus, ReplicaState, RolloutState, Severity

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
    RolloutState.ROLLING: "info",
    RolloutState.PAUSED: "warning",
    RolloutState.FAILED: "danger",
    RolloutState.DONE: "success",
    RolloutState.DROPPED: "default",
    CheckState.OPEN: "info",
    CheckState.PASSED: "success",
    CheckState.REFUSED: "danger",
    CheckState.SKIPPED: "default",
    Severity.INFO: "default",
    Severity.WARNING: "warning",
    Severity.ERROR: "danger",
}
#: The same by word, as unfold's `display(label=…)` takes it.
LABELS = {str(state): colour for state, colour in COLOURS.items()}


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> SafeString | str:
    """A small table inside a page; it scrolls by itself where the page is narrow."""
    body = [tuple("-" if cell in (None, "") else cell for cell in row) for row in rows]
    if not body:
        return "-"
    line = format_html("<tr>{}</tr>", format_html_join("", "<th>{}</th>", ((cell,) for cell in head)))
    lines = format_html_join(
        "", "<tr>{}</tr>", ((format_html_join("", "<td>{}</td>", ((c,) for c in row)),) for row in body)
    )
    return format_html('<div class="fleet-scroll"><table class="fleet-table">{}{}</table></div>', line, lines)
