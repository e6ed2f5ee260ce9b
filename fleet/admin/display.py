"""How states look: a colour for each, and never the colour alone."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Model
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from agent_client.protocol.states import ShardState
from fleet.domain.states import CheckState, CommandState, NodeStatus, ReplicaState, RolloutState, Severity
from fleet.domain.words import duration
from fleet.models import Event

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
    """A small table inside a page; where that is narrow, each row becomes a list of its own, with the heads beside."""
    body = [[_cell(name, value) for name, value in zip(head, row, strict=True)] for row in rows]
    if not body:
        return "-"
    line = format_html("<tr>{}</tr>", format_html_join("", "<th>{}</th>", ((cell,) for cell in head)))
    lines = format_html_join(
        "", "<tr>{}</tr>", ((format_html_join("", "{}", ((cell,) for cell in row)),) for row in body)
    )
    return format_html('<div class="fleet-scroll"><table class="fleet-table">{}{}</table></div>', line, lines)


def facts(rows: Iterable[tuple[str, Any]]) -> SafeString | str:
    """Names and values; those without a value are left out."""
    told = [(name, value) for name, value in rows if value not in (None, "")]
    if not told:
        return "-"
    return format_html('<dl class="fleet-pairs">{}</dl>', format_html_join("", "<dt>{}</dt><dd>{}</dd>", told))


def _cell(head: str, value: Any) -> SafeString:
    empty = value in (None, "")
    return format_html(
        '<td data-head="{}"{}>{}</td>', head, mark_safe(' class="fleet-none"') if empty else "", "-" if empty else value
    )


def short(text: str) -> SafeString:
    """Never broken over lines."""
    return format_html('<span class="fleet-short">{}</span>', text)


def lasting(at: datetime, now: datetime) -> SafeString:
    """For how long something has been so, and exactly since when on hover."""
    said = duration((now - at).total_seconds())
    exact = at.strftime("%Y-%m-%d %H:%M:%S")
    return format_html('<time datetime="{}" title="since {} UTC">{}</time>', at.isoformat(), exact, said)


def when(at: datetime | None, now: datetime) -> SafeString | str:
    """As people say it, and exactly on hover."""
    if at is None:
        return "-"
    far = (now - at).total_seconds()
    said = f"in {duration(-far)}" if far < -1 else f"{duration(far)} ago"
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>', at.isoformat(), at.strftime("%Y-%m-%d %H:%M:%S"), said
    )


def badge(state: Any) -> SafeString:
    """A state as a word in its colour."""
    return format_html('<span class="fleet-badge fleet-is-{}">{}</span>', COLOURS[state], state.replace("_", " "))


def link(row: Model, text: str) -> SafeString:
    """To the row's own page."""
    url = reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])
    return format_html('<a href="{}">{}</a>', url, text)


def story(events: Iterable[Event], now: datetime) -> SafeString | str:
    """What happened, newest first, and who did it."""
    rows = [(when(e.at, now), badge(Severity(e.severity)), e.text, e.actor) for e in events]
    return table(("when", "", "what", "by"), rows)


def log(lines: Iterable[str]) -> SafeString:
    """An engine's own words."""
    return format_html('<pre class="fleet-log" tabindex="0">{}</pre>', "\n".join(lines))


def plain(data: Any) -> SafeString:
    """Plain data, to be read."""
    return log(json.dumps(data, indent=2, ensure_ascii=False).splitlines())


def folded(key: str, title: str, body: SafeString | str, *, opened: bool = False) -> SafeString:
    """For what few need; `key` names it, so that it stays open while the page renews itself."""
    return format_html(
        '<details id="{}"{}><summary>{}</summary>{}</details>', key, mark_safe(" open") if opened else "", title, body
    )
