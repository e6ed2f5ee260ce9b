"""Two who act on one thing at once: what one has read is not what the other has left. Nothing is lost in silence."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections
from django.test import Client
from django.utils import timezone

from fleet.domain.states import ReplicaWish
from fleet.models import CatalogModel, Event, Gpu, Node, Replica
from fleet.services import operations
from fleet.services.errors import FleetError
from routing.services import create_key
from tests.fleet.test_reconciler import model, ready_node, tick
from tests.fleet.test_rollouts_and_drains import serving

WHO: dict[str, Any] = {"actor": "ann"}
OF_NODES: dict[str, Callable[[Node], None]] = {
    "cordon": lambda node: operations.cordon_node(node=node, reason="", **WHO),
    "uncordon": lambda node: operations.uncordon_node(node=node, **WHO),
    "drain": lambda node: operations.drain_node(node=node, deadline_seconds=1, reason="", now=timezone.now(), **WHO),
}
OF_CARDS: dict[str, Callable[[Gpu], None]] = {
    "cordon": lambda gpu: operations.cordon_gpu(gpu=gpu, cordoned=True, reason="", **WHO),
    "drain": lambda gpu: operations.drain_gpu(gpu=gpu, deadline_seconds=1, reason="", now=timezone.now(), **WHO),
}


@pytest.mark.django_db
@pytest.mark.parametrize("act", OF_NODES)
def test_what_is_done_to_a_node_that_has_just_been_deleted_is_refused(act: str) -> None:
    ready_node()
    node = Node.objects.get()
    Node.objects.all().delete()
    with pytest.raises(FleetError, match="cannot change gpu-01: it was deleted"):
        OF_NODES[act](node)
    assert not Event.objects.filter(actor="ann").exists()


@pytest.mark.django_db
@pytest.mark.parametrize("act", OF_CARDS)
def test_what_is_done_to_a_card_that_has_just_been_deleted_is_refused(act: str) -> None:
    ready_node()
    gpu = Gpu.objects.select_related("node")[0]
    Node.objects.all().delete()
    with pytest.raises(FleetError, match="cannot change"):
        OF_CARDS[act](gpu)


@pytest.mark.django_db
@pytest.mark.parametrize("wish", [ReplicaWish.RUN, ReplicaWish.STOP])
def test_a_replica_whose_model_is_deleted_meanwhile_is_not_wanted_again(wish: ReplicaWish) -> None:
    serving()
    seen = Replica.objects.select_related("model").get()
    Replica.objects.update(wish=ReplicaWish.REMOVE)
    with pytest.raises(FleetError, match="being removed"):
        operations.set_wish(replica=seen, wish=wish, now=timezone.now(), **WHO)
    with pytest.raises(FleetError, match="being removed"):
        operations.restart_replica(replica=seen, now=timezone.now(), **WHO)
    assert Replica.objects.get().wish == ReplicaWish.REMOVE


# -- over the API ------------------------------------------------------------------------------------------------------


def at_once(*asks: tuple[str, str, dict[str, Any]]) -> list[int]:
    """The status of each; all begin together."""
    _, text = create_key(name="manager", may_manage=True)

    def ask(given: tuple[str, str, dict[str, Any]]) -> int:
        client = Client(headers={"authorization": f"Bearer {text}"}, raise_request_exception=False)
        try:
            method, at, body = given
            return int(getattr(client, method)(at, body, content_type="application/json").status_code)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(asks)) as threads:
        return list(threads.map(ask, asks))


needs_postgres = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite's memory is one connection's")
ECHO = {"engine": "echo", "gpus": 0}


@needs_postgres
@pytest.mark.django_db(transaction=True)
def test_patches_of_different_fields_all_stay() -> None:
    assert connection.vendor == "postgresql"
    model("m")
    patches = [{"replicas": 7}, {"aliases": ["b"]}, {"routing": {"queue": 3}}, {"profile": {"priority": 5}}]
    assert at_once(*(("patch", "/api/v1/models/m/", patch) for patch in patches)) == [200] * 4
    row = CatalogModel.objects.get()
    assert (row.replicas, row.aliases, row.routing, (row.profile or {})["priority"]) == (7, ["b"], {"queue": 3}, 5)


@needs_postgres
@pytest.mark.django_db(transaction=True)
def test_one_of_many_adds_a_model_and_the_others_are_told() -> None:
    found = at_once(*(("post", "/api/v1/models/", {"name": "m", "replicas": n, "profile": ECHO}) for n in range(1, 7)))
    assert sorted(found) == [201, *[409] * 5]


@needs_postgres
@pytest.mark.django_db(transaction=True)
def test_whole_entries_replace_each_other_and_none_half() -> None:
    entries = [{"replicas": n, "aliases": [f"a{n}"], "profile": {**ECHO, "priority": n}} for n in range(1, 7)]
    found = at_once(*(("put", "/api/v1/models/m/", entry) for entry in entries))
    assert set(found) <= {200, 409}
    row = CatalogModel.objects.get()
    entry = entries[row.replicas - 1]
    assert (row.aliases, (row.profile or {})["priority"]) == (entry["aliases"], row.replicas)
    assert found[row.replicas - 1] == 200


@needs_postgres
@pytest.mark.django_db(transaction=True)
def test_changes_and_deletions_of_a_model_that_serves_converge() -> None:
    serving()
    asks: list[tuple[str, str, dict[str, Any]]] = [
        ("patch", "/api/v1/models/qwen/", {"profile": {"max_model_len": 4096}}),
        ("delete", "/api/v1/models/qwen/", {}),
        ("post", "/api/v1/models/qwen/rollback/", {}),
        ("post", f"/api/v1/replicas/{Replica.objects.get().uid}/restart/", {}),
        ("post", "/api/v1/nodes/gpu-01/drain/", {"deadline_seconds": 1}),
        ("post", "/api/v1/nodes/gpu-01/uncordon/", {}),
    ]
    found = at_once(*asks)
    assert all(status < 500 for status in found), found
    for _ in range(3):
        tick()
    again = at_once_again("post", {"name": "qwen", "profile": ECHO})
    assert again in (201, 409)
    tick()


def at_once_again(method: str, body: dict[str, Any]) -> int:
    _, text = create_key(name="second", may_manage=True)
    client = Client(headers={"authorization": f"Bearer {text}"}, raise_request_exception=False)
    return int(getattr(client, method)("/api/v1/models/", body, content_type="application/json").status_code)
