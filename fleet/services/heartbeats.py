"""Many heartbeats become one UPDATE. The session's number is unique over the fleet, so it fences each row exactly."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from fleet.domain import ages
from fleet.domain.liveness import LISTENER_FRESH_SECONDS
from fleet.domain.states import NodeStatus
from fleet.models import Listener, Node
from fleet.services import liveness, returns

LISTENER_FRESH = timedelta(seconds=LISTENER_FRESH_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The newest heartbeat of one session."""

    desired_revision: int
    inventory_stale_seconds: float | None


@transaction.atomic
def flush(*, listener: str, first: bool, beats: Mapping[int, Beat]) -> list[int]:
    """Renew all sessions' leases by the database's clock; returns the sessions that should send a whole report.

    `first`: of this process. It begins to listen then, and again after each gap in which nothing could be written.
    """
    _listening(listener, first)
    if not beats:
        return []
    nodes = Node.objects.filter(session_id__in=beats)
    nodes.update(last_seen_at=Now())
    refresh: list[int] = []
    rows = nodes.values_list("pk", "session_id", "status", "applied_revision", "inventory_stale_seconds")
    for pk, session_id, status, revision, stale in list(rows):
        beat = beats[session_id]
        if revision != beat.desired_revision or stale != beat.inventory_stale_seconds:
            Node.objects.filter(pk=pk, session_id=session_id).update(
                applied_revision=beat.desired_revision, inventory_stale_seconds=beat.inventory_stale_seconds
            )
        if status == NodeStatus.UNREACHABLE:
            returns.welcome(pk)
        elif status == NodeStatus.LOST:
            refresh.append(session_id)  # its shards were given up: what it still has must be told whole
    return refresh


def _listening(name: str, first: bool) -> None:
    """A gap is also what a clock that was put forward or back makes of the time between two flushes."""
    row = Listener.objects.filter(name=name)
    without_gap = row.filter(seen_at__gte=Now() - LISTENER_FRESH, seen_at__lte=Now() + ages.SLACK)
    if not first and without_gap.update(seen_at=Now()):
        return
    rows: Any = row.annotate(now=Now())
    before = rows.first()
    gap = None if before is None else ages.age(before.seen_at, before.now)
    _put_back()
    liveness.hear_again(listener=name, gap=gap, restarted=first)
    if not row.update(started_at=Now(), seen_at=Now()):
        Listener.objects.create(name=name, started_at=Now(), seen_at=Now())


def _put_back() -> None:
    """What lies ahead of the clock was stamped before it was put back: such a listener has to tell of itself anew, such
    a node was heard now, and nobody knows until when it was to be damped. Left alone, all would come true once more
    when the clock has caught up."""
    ahead = Now() + ages.SLACK
    Listener.objects.filter(seen_at__gt=ahead).delete()
    Node.objects.filter(last_seen_at__gt=ahead).update(last_seen_at=Now())
    Node.objects.filter(returned_at__gt=ahead).update(damped_until=None)
