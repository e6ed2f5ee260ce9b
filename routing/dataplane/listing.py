"""`GET /v1/models` and `/v1/models/{id}`: what a key may use, in the shape that its client reads."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

from routing.dataplane.messages import Head, Reply, clipped, refusal
from routing.domain import anthropic
from routing.keys import Key
from routing.table import Route, RoutingTable

PATH = "/v1/models"


def models(table: RoutingTable, key: Key | None, head: Head) -> Reply:
    routes = {
        name: route
        for name, route in table.routes.items()
        if key is None or key.may_use(route.name) or key.may_use(name)
    }
    wanted = unquote(head.path).removeprefix(PATH).removeprefix("/")
    if wanted and wanted not in routes:
        return refusal(404, f"The model `{clipped(wanted)}` does not exist.", code="model_not_found")
    if head.anthropic:
        return _anthropic(tuple(routes), wanted, head.target)
    rows = [_row(name, route) for name, route in routes.items() if name == wanted or not wanted]
    return _said(rows[0] if wanted else {"object": "list", "data": rows})


def _row(name: str, route: Route) -> dict[str, Any]:
    state = "ready" if route.routable else route.state
    return {"id": name, "object": "model", "created": 0, "owned_by": "llmgw", "state": state}


def _anthropic(names: Sequence[str], wanted: str, target: bytes) -> Reply:
    if wanted:
        return _said(anthropic.model(wanted))
    try:
        asked = dict(parse_qsl(target.partition(b"?")[2].decode("latin-1")))
        return _said(anthropic.page(names, asked))
    except anthropic.BadPage as error:
        return refusal(400, str(error))


def _said(data: dict[str, Any]) -> Reply:
    return Reply(status=200, body=json.dumps(data).encode())
