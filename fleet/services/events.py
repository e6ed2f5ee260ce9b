"""Writes the fleet's history, in the transaction of the change that it tells of."""

from collections.abc import Iterable
from typing import Any

from fleet.domain.states import Severity
from fleet.models import Event


def record(
    kind: str,
    text: str,
    *,
    severity: Severity = Severity.INFO,
    actor: str = "",
    node_id: int | None = None,
    replica_id: int | None = None,
    data: dict[str, Any] | None = None,
) -> None:
    Event.objects.create(
        kind=kind, text=text, severity=severity, actor=actor, node_id=node_id, replica_id=replica_id, data=data or {}
    )


def written(kind: str, text: str, replica_id: int, node_id: int | None = None) -> Event:
    """One of many lines, for record_all."""
    return Event(kind=kind, text=text, replica_id=replica_id, node_id=node_id)


def record_all(events: Iterable[Event]) -> None:
    """Many lines at once."""
    Event.objects.bulk_create(events)
