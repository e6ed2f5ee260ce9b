"""The admin's home page: the first line is the answer."""

from typing import Any

from django.http import HttpRequest
from django.utils import timezone

from fleet import snapshots
from fleet.domain.overview import CardUse, overview
from fleet.models import Event
from fleet.services import liveness


def fill(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """unfold's DASHBOARD_CALLBACK. A fixed number of queries, whatever the size of the fleet."""
    context["fleet"] = overview(snapshots.load())
    context["held"] = liveness.eviction_held()
    context["uses"] = list(CardUse)
    context["events"] = Event.objects.all()[:10]
    context["now"] = timezone.now()
    return context
