"""System checks of the fleet, each with an id and a hint."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register


@register()
def check_liveness_order(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """A node must be unreachable before it is lost, and silent for more than one heartbeat before it is unreachable."""
    fleet: dict[str, Any] = settings.FLEET
    if fleet["heartbeat_seconds"] < fleet["unreachable_after_seconds"] < fleet["lost_after_seconds"]:
        return []
    return [
        Error(
            "cannot judge nodes: FLEET_HEARTBEAT_SECONDS < FLEET_UNREACHABLE_AFTER_SECONDS < FLEET_LOST_AFTER_SECONDS "
            "does not hold.",
            hint="The defaults are 10, 30 and 300.",
            id="fleet.E001",
        )
    ]
