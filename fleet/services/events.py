"""Writes the fleet's history, in the transaction of the change that it tells of."""

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
