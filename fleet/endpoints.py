"""The window between fleet and routing: what can be asked for, and where, as whole state in three queries; and what
routers see of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from fleet.domain.states import NodeStatus, ReplicaState, ReplicaWish
from fleet.doorbell import ROUTES_CHANNEL, ring_routes
from fleet.models import CatalogModel, Flow, Replica, ServedName, Shard

__all__ = ["ROUTES_CHANNEL", "FlowWord", "hear_flows", "published", "ring_routes"]

#: An unreachable node's engines stay routable: the router sees for itself whether they answer.
ROUTED_NODES = (NodeStatus.READY, NodeStatus.UNREACHABLE, NodeStatus.JOINING)
RETRY_AFTER_SECONDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowWord:
    """What a router says of one endpoint: requests in flight, and for how long no token has come."""

    endpoint: str  # its id in the published window
    in_flight: int
    silent_seconds: float


def hear_flows(words: Iterable[FlowWord]) -> None:
    """Keep a router's word of managed replicas; what was published for an older attempt is left out. Two queries.

    Of several routers the last token that any saw counts: one moving answer is proof of life. What has nothing in
    flight is not told of, and its row grows old.
    """
    told = {key: word for word in words if word.in_flight > 0 and (key := _managed(word.endpoint))}
    if not told:
        return
    rows: Any = Replica.objects.filter(model__name__in={name for name, _, _ in told}).annotate(now=Now())
    flows = []
    for row in rows.values_list("pk", "model__name", "number", "attempt", "now", "flow__attempt", "flow__moved_at"):
        pk, name, number, attempt, now, known, known_at = row
        word = told.get((name, number, attempt))
        if word is None:
            continue
        moved_at = now - timedelta(seconds=min(max(word.silent_seconds, 0.0), 86_400.0))
        if known == attempt:
            moved_at = max(moved_at, min(known_at, now))  # never ahead of a clock that was put back
        flows.append(Flow(replica_id=pk, attempt=attempt, in_flight=word.in_flight, moved_at=moved_at, seen_at=now))
    Flow.objects.bulk_create(
        flows,
        batch_size=1000,
        update_conflicts=True,
        unique_fields=["replica"],
        update_fields=["attempt", "in_flight", "moved_at", "seen_at"],
    )


def _managed(endpoint: str) -> tuple[str, int, int] | None:
    """Model, number and attempt of "qwen/2#7"."""
    label, _, attempt = endpoint.rpartition("#")
    name, _, number = label.rpartition("/")
    return (name, int(number), int(attempt)) if number.isdecimal() and attempt.isdecimal() else None


def unknown_names(names: Iterable[str]) -> list[str]:
    """Those by which no model of the catalog can be asked for."""
    asked = list(dict.fromkeys(names))
    known = set(ServedName.objects.filter(name__in=asked).values_list("name", flat=True))
    return [name for name in asked if name not in known]


def published() -> list[dict[str, Any]]:
    """One entry per model, in the shape of the routes file (routing/table.py reads it)."""
    heads = {
        (replica, epoch): status
        for replica, epoch, status in Shard.objects.filter(rank=0).values_list("replica_id", "epoch", "node__status")
    }
    replicas: dict[int, list[Replica]] = {}
    for replica in Replica.objects.order_by("number"):
        replicas.setdefault(replica.model_id, []).append(replica)
    return [_model(model, replicas.get(model.pk, []), heads) for model in CatalogModel.objects.order_by("name")]


def _model(model: CatalogModel, replicas: list[Replica], heads: dict[tuple[int, int], str]) -> dict[str, Any]:
    if model.endpoints is not None:
        endpoints = [
            {"id": f"{model.name}@{item['url']}", "url": item["url"], "weight": item.get("weight", 1)}
            | ({"model": item["model"]} if item.get("model") else {})
            for item in model.endpoints
        ]
        state, reason = "ready", ""
    else:
        endpoints = [
            {
                "id": f"{model.name}/{replica.number}#{replica.attempt}",
                "url": replica.endpoint,
                "key": replica.engine_key or None,
                "weight": 1,
                "draining": replica.state == ReplicaState.DRAINING or replica.wish != ReplicaWish.RUN,
            }
            for replica in replicas
            if replica.state in (ReplicaState.READY, ReplicaState.DRAINING)
            and replica.endpoint
            and heads.get((replica.pk, replica.attempt)) in ROUTED_NODES
        ]
        state, reason = _state(model, replicas)
    return {
        "name": model.name,
        "aliases": model.aliases,
        "state": state,
        "reason": reason,
        "retry_after": RETRY_AFTER_SECONDS,
        "endpoints": endpoints,
        **model.routing,
    }


def _state(model: CatalogModel, replicas: list[Replica]) -> tuple[str, str]:
    states = {replica.state for replica in replicas}
    if ReplicaState.READY in states:
        return "ready", ""
    if ReplicaState.STARTING in states:
        return "loading", f"{model.name} is starting"
    first = next((replica for replica in replicas if replica.reason), None)
    return "down", f"{first.label}: {first.reason}" if first else "it has no replica"
