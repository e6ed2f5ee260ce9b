"""Plans and ledgers over a database: by API, by command and on pages."""

from importlib import import_module
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from fleet import snapshots
from fleet.models import CatalogModel, Gpu, Node, Replica, Shard
from fleet.services import claims, operations
from fleet.services.commands import desired_for
from tests.fleet.test_catalog_and_pages import api  # noqa: F401  (a fixture)
from tests.fleet.test_reconciler import gpu, make_ready, model, ready_node, register, tick
from tests.profile.models import config_of

pytestmark = pytest.mark.django_db


def plan(client: Client, name: str, body: Any = None) -> Any:
    return client.post(f"/api/v1/models/{name}/plan/", body or {}, content_type="application/json")


def test_a_draft_is_planned_before_it_is_saved(api: Client) -> None:  # noqa: F811
    ready_node(cards=2)
    draft = {"engine": "vllm", "model": "org/m", "tensor_parallel": 2, "env": {"A": "1", "T": {"secret": "hf"}}}
    answer = plan(api, "new", {"profile": draft}).json()
    assert answer["fits"] is True
    (rank,) = answer["placement"]["ranks"]
    assert rank["node"] == "gpu-01"
    assert [card["uuid"] for card in rank["gpus"]] == ["GPU-0", "GPU-1"]
    assert rank["environment"] == [
        {"name": "A", "value": "1", "origin": "profile"},
        {"name": "T", "value": "(secret)", "origin": "secret hf"},
    ]
    assert plan(api, "new", draft).json() == answer
    assert not CatalogModel.objects.exists()


def test_a_plan_of_the_stored_profile_says_what_would_help(api: Client) -> None:  # noqa: F811
    ready_node(cards=2)
    operations.cordon_node(node=Node.objects.get(), reason="fan", actor="ann")
    model(tensor_parallel=2)
    answer = plan(api, "qwen").json()
    assert answer["placement"] is None
    assert answer["refusal"]["text"] == "0 of 1 node fit: gpu-01 is cordoned (fan)"
    assert [each["text"] for each in answer["refusal"]["proposals"]] == ["uncordon gpu-01: it would go to gpu-01"]


def test_a_plan_that_makes_no_sense_is_refused(api: Client) -> None:  # noqa: F811
    assert plan(api, "nobody").status_code == 404
    bad = plan(api, "new", {"profile": {"engine": "nope"}})
    assert (bad.status_code, bad.json()["code"]) == (400, "invalid_profile")
    unrunnable = {"engine": "echo", "gpus": 0, "extra_args": ["--port", "1"]}
    bad = plan(api, "new", {"profile": unrunnable})
    assert (bad.status_code, "--port" in bad.json()["detail"]) == (400, True)
    odd = plan(api, "new", {"profile": {"engine": "echo", "gpus": 0}, "model_config": "x"})
    assert (odd.status_code, odd.json()["code"]) == (400, "invalid_config")


def test_a_share_below_what_the_model_needs_is_refused_with_the_share_that_would_do(
    api: Client,  # noqa: F811
) -> None:
    ready_node(cards=1)
    config = config_of("meta-llama/Meta-Llama-3.1-8B")
    draft = {"engine": "vllm", "model": "m", "gpu_memory_utilization": 0.3}
    assert plan(api, "new", {"profile": draft}).json()["fits"]  # nothing is known of the model
    refusal = plan(api, "new", {"profile": draft, "model_config": config}).json()["refusal"]
    (node,) = refusal["nodes"]
    assert node["reason"] == "share"
    share = "a share of 0.3 of the card's 79.6 GiB is 23.9 GiB"
    assert f"GPU 0 can't hold the model: {share}, and weights and the smallest cache need 31.0 GiB" in node["text"]
    assert "; at least 0.39 is needed" in node["text"]
    assert "raise gpu_memory_utilization" in refusal["hint"]
    (proposal,) = [each for each in refusal["proposals"] if "utilization" in each["text"]]
    assert proposal["text"] == "set gpu_memory_utilization: 0.42: it would go to gpu-01"
    (change,) = proposal["changes"]
    raised = draft | change["set"]
    assert plan(api, "new", {"profile": raised, "model_config": config}).json()["fits"]


def test_ranks_over_two_nodes_are_shown_with_their_environment(api: Client) -> None:  # noqa: F811
    for name, hca in (("gpu-01", "mlx5_0"), ("gpu-02", "mlx5_7")):
        port = {"port": 1, "state": "ACTIVE", "link_layer": "InfiniBand", "fabric": "east"}
        adapters = [{"hca": hca, "netdev": "ib0", "ports": [port]}]
        inventory = {"gpus": [gpu(0, uuid=f"GPU-{name}")], "adapters": adapters}
        admission = register(name, inventory=inventory)
        Node.objects.filter(pk=admission.node_id).update(status="ready")
    draft = {"engine": "vllm", "model": "m", "pipeline_parallel": 2, "nodes": 2, "env": {"NCCL_IB_HCA": "=mine"}}
    placement = plan(api, "new", draft).json()["placement"]
    assert (placement["fabric"], placement["head_address"]) == ("east", "127.0.0.1")
    told = [{row["name"]: (row["value"], row["origin"]) for row in rank["environment"]} for rank in placement["ranks"]]
    assert told[0]["NCCL_IB_HCA"] == ("=mine", "profile")
    assert told[1]["NCCL_SOCKET_IFNAME"] == ("=ib0", "fabric east")
    assert told[1]["VLLM_HOST_IP"] == ("127.0.0.1", "automatic")
    del draft["env"]
    ranks = plan(api, "new", draft).json()["placement"]["ranks"]
    assert [rank["environment"][1]["value"] for rank in ranks] == ["=mlx5_0:1", "=mlx5_7:1"]


@pytest.mark.parametrize(
    ("addresses", "meeting", "origin"),
    [
        (("10.8.0.1", "10.8.0.2"), "10.8.0.1", "fabric east"),
        (("fd00::1", "fd00::2"), "fd00::1", "fabric east"),
        (("10.8.0.1", None), "127.0.0.1", "automatic"),  # an agent that does not tell
        (("10.8.0.1", ""), "127.0.0.1", "automatic"),  # a rank that could not answer there
        (("junk", "10.8.0.2"), "127.0.0.1", "automatic"),
    ],
)
def test_ranks_meet_on_the_chosen_fabric_where_each_has_an_address_there(
    api: Client,  # noqa: F811
    addresses: tuple[str | None, str | None],
    meeting: str,
    origin: str,
) -> None:
    for number, address in enumerate(addresses):
        port = {"port": 1, "state": "ACTIVE", "link_layer": "InfiniBand", "fabric": "east", "address": address}
        adapters = [{"hca": "mlx5_0", "netdev": "ib0", "ports": [port]}]
        ready_node(f"gpu-{number}", inventory={"gpus": [gpu(0, uuid=f"GPU-{number}")], "adapters": adapters})
    model(pipeline_parallel=2, nodes=2)
    placement = plan(api, "qwen").json()["placement"]
    assert (placement["head_address"], placement["head_address_origin"]) == (meeting, origin)
    told = {row["name"]: (row["value"], row["origin"]) for row in placement["ranks"][0]["environment"]}
    assert told["VLLM_HOST_IP"] == (meeting, origin)
    tick()
    assert set(Shard.objects.values_list("rendezvous_address", flat=True)) == {meeting}


def test_cards_are_told_in_the_order_of_their_claims_so_that_no_domain_is_torn() -> None:
    inventory = {"gpus": [gpu(i, domain="even" if i % 2 == 0 else "odd") for i in range(4)]}
    admission = ready_node(inventory=inventory)
    model(tensor_parallel=2, pipeline_parallel=2)
    tick()
    told = ("GPU-0", "GPU-2", "GPU-1", "GPU-3")
    (shard,) = desired_for(admission.node_id).shards
    assert shard.spec.gpus == told
    row = Shard.objects.get()
    claims.release(row.pk)
    assert claims.reclaim(row)  # its node was lost and is back
    assert desired_for(admission.node_id).shards[0].spec.gpus == told


def test_explain_tells_what_would_help() -> None:
    ready_node(cards=1)
    operations.cordon_node(node=Node.objects.get(), reason="", actor="ann")
    model()
    out = StringIO()
    call_command("explain", "qwen", stdout=out)
    assert "  would help: uncordon gpu-01: it would go to gpu-01\n" in out.getvalue()


def test_explain_says_when_nothing_small_helps() -> None:
    ready_node(cards=1)
    model(tensor_parallel=8)
    out = StringIO()
    call_command("explain", "qwen", stdout=out)
    assert "  no small change would make it fit\n" in out.getvalue()


def test_pages_of_model_and_replica_show_what_would_help(
    admin_client: Client, django_assert_max_num_queries: Any
) -> None:
    ready_node(cards=1)
    operations.cordon_node(node=Node.objects.get(), reason="", actor="ann")
    model()
    tick()
    for url in (
        reverse("admin:fleet_replica_change", args=[Replica.objects.get().pk]),
        reverse("admin:fleet_catalogmodel_change", args=[CatalogModel.objects.get().pk]),
    ):
        with django_assert_max_num_queries(22):
            page = admin_client.get(url).content.decode()
        assert "uncordon gpu-01: it would go to gpu-01" in page


def test_the_ledger_is_on_the_nodes_page_and_in_the_api(api: Client, admin_client: Client) -> None:  # noqa: F811
    admission = ready_node(cards=2)
    model(gpu_class="h100-sxm-80gb")
    tick()
    make_ready(admission)
    first, second = api.get("/api/v1/nodes/gpu-01/ledger/").json()["gpus"]
    assert (first["use"], first["replica"], first["attempt"], first["pids"]) == ("held", "qwen/1", 1, [1])
    assert (second["use"], second["text"]) == ("free", "free")
    page = admin_client.get(reverse("admin:fleet_node_change", args=[admission.node_id])).content.decode()
    assert ">qwen/1</a>, attempt 1 (ready)" in page


def test_an_id_of_a_domain_means_something_on_its_node_alone_unless_it_is_a_rack() -> None:
    for name in ("gpu-01", "gpu-02"):
        own = [gpu(0, uuid=f"A-{name}", domain="nvswitch"), gpu(1, uuid=f"B-{name}", domain="rack.7")]
        kinds = [{"id": "nvswitch", "kind": "switch"}, {"id": "rack.7", "kind": "rack"}]
        register(name, inventory={"gpus": own, "domains": kinds})
    one, other = (tuple(card.domain for card in node.gpus) for node in snapshots.load().nodes)
    assert one[0] != other[0]
    assert one[1] == other[1] == "rack.7"


def test_the_migration_learns_racks_from_the_inventories_that_are_stored() -> None:
    own = [gpu(0, domain="nvswitch"), gpu(1, domain="rack.7")]
    register(inventory={"gpus": own, "domains": [{"id": "rack.7", "kind": "rack"}, "junk", {"id": "nvswitch"}]})
    register("gpu-02", inventory={"gpus": [gpu(0)], "domains": "junk"})
    Gpu.objects.update(spans_nodes=False)
    migration = import_module("fleet.migrations.0005_addresses_and_racks")
    migration.racks_are_told_by_the_inventory(apps, None)
    assert list(Gpu.objects.filter(spans_nodes=True).values_list("domain", flat=True)) == ["rack.7"]


def test_what_an_ended_engine_of_ours_held_is_not_held_against_a_card() -> None:
    processes = [
        {"pid": 1, "name": "vllm", "memory_mib": 60_000, "foreign": False},
        {"pid": 2, "name": "top", "memory_mib": 500, "foreign": True},
    ]
    register(inventory={"gpus": [gpu(0, memory_used_mib=61_000, processes=processes)]})
    (card,) = snapshots.load().nodes[0].gpus
    assert (card.memory_used_mib, card.foreign, card.foreign_mib) == (1_000, "top (pid 2)", 500)


def test_files_are_where_the_model_was_ready_once() -> None:
    admission = ready_node()
    model()
    tick()
    assert snapshots.load().nodes[0].holds_models == frozenset()
    make_ready(admission)
    assert snapshots.load().nodes[0].holds_models == {CatalogModel.objects.get().pk}
