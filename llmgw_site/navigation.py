"""The admin's sidebar: what operators look at first, what is inside last."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse_lazy

_GROUPS: tuple[tuple[str, bool, tuple[tuple[str, str], ...]], ...] = (
    (
        "Fleet",
        False,
        (
            ("Home", "index"),
            ("Models", "fleet_catalogmodel"),
            ("Replicas", "fleet_replica"),
            ("Rollouts", "fleet_rollout"),
            ("Nodes", "fleet_node"),
            ("GPUs", "fleet_gpu"),
            ("Adapters", "fleet_adapter"),
            ("Fabrics", "fleet_fabric"),
            ("Events", "fleet_event"),
        ),
    ),
    (
        "Access",
        False,
        (
            ("API keys", "routing_apikey"),
            ("Usage", "routing_usage"),
            ("Ejections", "routing_ejection"),
            ("Users", "auth_user"),
            ("Groups", "auth_group"),
        ),
    ),
    (
        "Inside",
        True,
        (
            ("Shards", "fleet_shard"),
            ("GPU claims", "fleet_gpuclaim"),
            ("Orders", "fleet_command"),
            ("Questions to nodes", "fleet_drycheck"),
            ("Agent streams", "fleet_agentsession"),
            ("Profile revisions", "fleet_profilerevision"),
            ("Served names", "fleet_servedname"),
            ("Listeners", "fleet_listener"),
            ("Leases", "fleet_lease"),
        ),
    ),
)


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """In the shape that unfold's SIDEBAR takes; a person sees the tables that they may view."""
    return [
        {
            "title": title,
            "separator": folded,
            "collapsible": folded,
            "items": [{"title": name, "link": _link(target)} for name, target in items if _may(request, target)],
        }
        for title, folded, items in _GROUPS
    ]


def _link(target: str) -> Any:
    return reverse_lazy(f"admin:{target}" if target == "index" else f"admin:{target}_changelist")


def _may(request: HttpRequest, target: str) -> bool:
    app, _, table = target.partition("_")
    return target == "index" or request.user.has_perm(f"{app}.view_{table}")
