"""No drain lasts longer than it was given. A deadline further ahead than its own length was set before the database's
clock was put back, and would come late by as much: it is cut to that length, counted from now."""

from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet.domain.ages import SLACK
from fleet.models import Gpu, Node, Replica, Shard

LONGEST_DRAIN_SECONDS = 7 * 86_400


def lasting(for_: timedelta, now: datetime) -> dict[str, Any]:
    """The columns of a row that is drained from now on."""
    return {"drain_deadline_at": now + for_, "drain_for": for_}


def cut(now: datetime) -> None:
    """Rows with a deadline to come are few at any time."""
    live = Shard.objects.exclude(state__in=ENDED_SHARD_STATES)
    for rows in (Node.objects.all(), Gpu.objects.all(), Replica.objects.all(), live):
        _cut(rows, now)


def _cut(rows: QuerySet[Any], now: datetime) -> None:
    to_come = rows.filter(drain_deadline_at__gt=now).order_by()
    for pk, deadline_at, for_ in to_come.values_list("pk", "drain_deadline_at", "drain_for"):
        longest = timedelta(seconds=LONGEST_DRAIN_SECONDS) if for_ is None else for_
        if deadline_at > now + longest + SLACK:
            # By compare-and-set: a person may be setting another one.
            rows.filter(pk=pk, drain_deadline_at=deadline_at).update(**lasting(longest, now))
