"""The published window for routing: what can be asked for, and where. Whole state at each call, in three queries."""

from typing import Any

from fleet.domain.states import NodeStatus, ReplicaState, ReplicaWish
from fleet.doorbell import ROUTES_CHANNEL, ring_routes
from fleet.models import CatalogModel, Replica, Shard

__all__ = ["ROUTES_CHANNEL", "published", "ring_routes"]

#: An unreachable node's engines stay routable: the router sees for itself whether they answer.
ROUTED_NODES = (NodeStatus.READY, NodeStatus.UNREACHABLE, NodeStatus.JOINING)
RETRY_AFTER_SECONDS = 5


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
    }


def _state(model: CatalogModel, replicas: list[Replica]) -> tuple[str, str]:
    states = {replica.state for replica in replicas}
    if ReplicaState.READY in states:
        return "ready", ""
    if ReplicaState.STARTING in states:
        return "loading", f"{model.name} is starting"
    first = next((replica for replica in replicas if replica.reason), None)
    return "down", f"{first.number}: {first.reason}" if first else "it has no replica"
