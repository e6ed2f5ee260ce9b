"""The admin's home page: the first line is the answer."""

from typing import Any

from django.db.models import F
from django.http import HttpRequest
from django.urls import reverse

from agent_client.protocol.states import ShardState
from fleet import clock, snapshots
from fleet.conf import fleet_conf
from fleet.domain.overview import CardUse, overview
from fleet.domain.states import NodeStatus
from fleet.models import Event, Node, Shard
from fleet.services import liveness, rollouts


def fill(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """unfold's DASHBOARD_CALLBACK. A fixed number of queries, whatever the size of the fleet."""
    now = clock.now()
    held = liveness.eviction_held()
    deaf = liveness.deaf()
    lost_after = None if held or deaf else fleet_conf().lost_after.total_seconds()
    context["fleet"] = overview(
        snapshots.load(), now=now, loading=_loading(), lost_after=lost_after, failed=rollouts.failed()
    )
    context["held"], context["deaf"] = held, deaf
    silent = Node.objects.filter(status=NodeStatus.UNREACHABLE)
    context["silent"] = silent.values_list("pk", flat=True).first() if held else None
    # For each kind of thing: where its buttons are pressed, for those who may.
    user: Any = request.user
    context["lists"] = {
        kind: reverse(f"admin:fleet_{kind}_changelist")
        for kind in ("node", "replica", "rollout")
        if user.has_perm(f"fleet.change_{kind}")
    }
    context["uses"] = list(CardUse)
    context["events"] = Event.objects.all()[:10]
    context["now"] = now
    return context


def _loading() -> dict[int, str]:
    """How far starts have come, by replica."""
    rows = Shard.objects.filter(state=ShardState.LOADING, rank=0, epoch=F("replica__attempt")).exclude(phase="")
    return {
        replica: phase if progress is None else f"{phase}, {progress:.0%}"
        for replica, phase, progress in rows.values_list("replica", "phase", "progress")
    }
