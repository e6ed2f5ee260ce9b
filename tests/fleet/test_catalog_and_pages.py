"""The catalog round trip, the REST API and the admin's pages; no secret in any of them."""

import html
import json
import re
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from fleet.admin.display import COLOURS
from fleet.domain.states import CheckState, CommandState, NodeStatus, ReplicaState, RolloutState, Severity
from fleet.models import CatalogModel, GpuClaim, Node, Replica, Shard
from fleet.services import catalog
from fleet.services.errors import FleetError
from routing.keys import new_key
from routing.models import ApiKey
from tests.fleet.test_reconciler import make_ready, model, ready_node, tick

pytestmark = pytest.mark.django_db

FILE: dict[str, Any] = {
    "models": [
        {"name": "qwen", "aliases": ["default"], "replicas": 2, "profile": {"engine": "vllm", "model": "/m/q"}},
        {"name": "outside", "endpoints": [{"url": "http://10.0.0.5:8000", "weight": 1}]},
    ]
}


def test_export_and_apply_make_no_changes() -> None:
    assert [str(change) for change in catalog.apply_catalog(FILE, actor="t")] == ["+ qwen", "+ outside"]
    assert catalog.apply_catalog(catalog.export_catalog(), actor="t") == ()
    changed = catalog.export_catalog()
    changed["models"] = [m for m in changed["models"] if m["name"] == "qwen"]
    changed["models"][0]["replicas"] = 1
    assert [str(c) for c in catalog.diff_catalog(changed)] == ["~ qwen: replicas: 2 → 1", "- outside"]


def test_a_name_has_one_owner() -> None:
    catalog.apply_catalog(FILE, actor="t")
    entry = catalog.read_entry({"name": "other", "aliases": ["default"], "profile": {"engine": "echo"}})
    with pytest.raises(FleetError, match="cannot save other: default is an alias of the model qwen") as taken:
        catalog.save_entry(entry, actor="t")
    assert taken.value.hint == "choose another name, or take default from it first"


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(FleetError) as error:
        catalog.read_entry({"name": "x y", "profile": {"engine": "vlm", "tensor_paralel": 2}})
    for part in ("'x y'", "'vlm'", "`tensor_paralel` is not known"):
        assert part in error.value.detail
    assert "did you mean `tensor_parallel`?" in error.value.hint


@pytest.fixture
def api() -> Client:
    text, prefix, sha256 = new_key()
    ApiKey.objects.create(name="ci", prefix=prefix, sha256=sha256, may_manage=True)
    return Client(headers={"authorization": f"Bearer {text}"})


def test_the_api_adds_reads_and_refuses(api: Client) -> None:
    made = api.post("/api/v1/models/", FILE["models"][0], content_type="application/json")
    assert made.status_code == 201
    assert api.get("/api/v1/models/qwen/").json()["replicas"] == 2
    bad = api.post("/api/v1/models/", {"name": "x"}, content_type="application/json")
    assert bad.status_code == 400
    assert bad.json()["code"] == "invalid_catalog"
    assert bad.json()["detail"].startswith("cannot")
    assert api.get("/api/v1/models/none/").status_code == 404
    assert Client().get("/api/v1/nodes/").status_code in (401, 403)
    assert Client(headers={"authorization": "Bearer llmgw_aaaaaaaa_x"}).get("/api/v1/nodes/").status_code == 401


def test_a_body_that_is_nested_without_end_is_refused_in_a_sentence(api: Client) -> None:
    answer = api.post("/api/v1/models/", "[" * 100_000, content_type="application/json")
    assert (answer.status_code, answer.json()["detail"]) == (
        400,
        "cannot read the body: it is nested more than 50 deep",
    )


def test_cordon_by_api_is_seen_and_told(api: Client) -> None:
    ready_node()
    answer = api.post("/api/v1/nodes/gpu-01/cordon/", {"reason": "fan"}, content_type="application/json")
    assert answer.json()["schedulable"] is False
    assert "gpu-01 cordoned: fan" in str(api.get("/api/v1/events/").json())


def test_an_event_names_its_node_and_its_replica_in_a_fixed_number_of_queries(
    api: Client, django_assert_num_queries: Any
) -> None:
    admission = ready_node()
    model()
    tick()
    make_ready(admission)
    api.post("/api/v1/nodes/gpu-01/cordon/", {"reason": "fan"}, content_type="application/json")
    with CaptureQueriesContext(connection) as few:
        rows = api.get("/api/v1/events/?limit=1").json()["results"]
    assert (rows[0]["node"], rows[0]["replica"], rows[0]["model"]) == ("gpu-01", None, None)
    with django_assert_num_queries(len(few)):
        rows = api.get("/api/v1/events/").json()["results"]
    replica = Replica.objects.get()
    told = [row for row in rows if row["replica"]]
    assert told
    assert {(row["replica"], row["model"]) for row in told} == {(replica.label, replica.model.name)}


def test_no_secret_reaches_api_or_pages(api: Client, admin_client: Client) -> None:
    admission = ready_node()
    model()
    tick()
    make_ready(admission)
    key, node = Replica.objects.get().engine_key, Node.objects.get()
    secrets = [key, node.credential_sha256, admission.credential]
    assert all(secrets)
    paths = ["/api/v1/nodes/", "/api/v1/replicas/", "/api/v1/events/", "/api/v1/models/"]
    paths += [reverse("admin:fleet_replica_change", args=[Replica.objects.get().pk])]
    paths += [reverse("admin:fleet_node_change", args=[node.pk]), reverse("admin:fleet_command_changelist")]
    for path in paths:
        text = (api if path.startswith("/api") else admin_client).get(path).content.decode()
        assert not [secret for secret in secrets if secret and secret in text], path


OURS = [m for m in admin.site._registry if m._meta.app_label in ("fleet", "routing")]


@pytest.mark.parametrize("table", OURS, ids=lambda m: m._meta.model_name)
def test_every_model_is_listed_searchable_and_within_a_fixed_number_of_queries(
    table: Any, admin_client: Client, django_assert_max_num_queries: Any
) -> None:
    admission = ready_node()
    model(replicas=2)
    tick()
    tick()
    assert admission
    name = f"admin:{table._meta.app_label}_{table._meta.model_name}_changelist"
    assert admin.site._registry[table].search_fields
    with django_assert_max_num_queries(14):
        answer = admin_client.get(reverse(name), {"q": "x"})
    assert answer.status_code == 200
    assert admin_client.get(reverse(name)).status_code == 200


def test_a_pending_replica_explains_itself_on_its_page(admin_client: Client) -> None:
    ready_node(cards=1)
    model(tensor_parallel=4)
    tick()
    page = admin_client.get(reverse("admin:fleet_replica_change", args=[Replica.objects.get().pk]))
    assert "gpu-01 has 1 free h100-sxm-80gb, 4 needed" in page.content.decode()


def test_actions_report_row_by_row(admin_client: Client) -> None:
    ready_node()
    data = {"action": "cordon", "_selected_action": [Node.objects.get().pk]}
    answer = admin_client.post(reverse("admin:fleet_node_changelist"), data, follow=True)
    assert "gpu-01: cordoned" in answer.content.decode()
    assert Node.objects.get().schedulable is False


def test_the_admin_form_uses_the_catalog_rules(admin_client: Client) -> None:
    url = reverse("admin:fleet_catalogmodel_add")
    bad = {"name": "m", "aliases": "[]", "replicas": 1, "profile": '{"engine": "nope"}', "endpoints": ""}
    page = admin_client.post(url, bad)
    assert "one of vllm" in page.content.decode()
    good = bad | {"profile": '{"engine": "echo", "gpus": 0}'}
    assert admin_client.post(url, good).status_code == 302
    assert catalog.export_catalog()["models"][0]["name"] == "m"
    assert User.objects.exists()


@pytest.mark.parametrize("state", [*NodeStatus, *ReplicaState, *RolloutState, *CheckState, *CommandState, *Severity])
def test_each_state_has_a_colour(state: Any) -> None:
    assert COLOURS[state]


def test_the_home_page_answers_first(admin_client: Client, django_assert_max_num_queries: Any) -> None:
    ready_node(cards=1)
    model(tensor_parallel=4)
    tick()
    tick()
    with django_assert_max_num_queries(21):
        page = admin_client.get(reverse("admin:index")).content.decode()
    assert "One thing needs you." in page
    assert "qwen/1 cannot be placed" in page
    assert "gpu-01 GPU 0, h100-sxm-80gb: free" in page


def test_a_machine_is_deleted_when_nothing_of_a_replica_may_run_there(admin_client: Client) -> None:
    ready_node()
    model()
    tick()
    tick()
    url = reverse("admin:fleet_node_delete", args=[Node.objects.get().pk])
    page = admin_client.post(url, {"post": "yes"}, follow=True)
    assert "cannot delete gpu-01: it holds qwen/1" in page.content.decode()
    Shard.objects.update(state="lost")
    GpuClaim.objects.update(released_at=timezone.now())
    assert "gpu-01: deleted" in admin_client.post(url, {"post": "yes"}, follow=True).content.decode()
    assert not Node.objects.exists()
    assert Replica.objects.get().state == ReplicaState.PENDING


UNRUNNABLE = [
    ({"extra_args": ["--tensor-parallel=2"]}, "it reaches --tensor-parallel-size, which llmgw sets itself"),
    ({"dtype": "bf16"}, "vllm has no dtype bf16"),
    ({"engine": "sglang", "nodes": 2, "tensor_parallel": 2, "data_parallel": 2}, "no data_parallel 2 over 2 nodes"),
    ({"engine": "llamacpp", "env": {"LLAMA_ARG_MODELS_DIR": "/x"}}, "cannot use env LLAMA_ARG_MODELS_DIR"),
    ({"engine": "custom", "options": {"command": ["x", "{nope}"]}}, "unknown placeholder ('nope')"),
]


@pytest.mark.parametrize(("fields", "text"), UNRUNNABLE)
def test_what_no_node_would_run_is_refused_when_it_is_saved_by_file_api_and_form(
    api: Client, admin_client: Client, fields: dict[str, Any], text: str
) -> None:
    profile = {"engine": "vllm", "model": "/m/q", **fields}
    with pytest.raises(FleetError) as error:
        catalog.apply_catalog({"models": [{"name": "q", "profile": profile}]}, actor="t")
    assert text in error.value.detail
    answer = api.post("/api/v1/models/", {"name": "q", "profile": profile}, content_type="application/json")
    assert (answer.status_code, text in answer.json()["detail"]) == (400, True)
    form = {"name": "q", "aliases": "[]", "replicas": 1, "profile": json.dumps(profile), "endpoints": ""}
    page = admin_client.post(reverse("admin:fleet_catalogmodel_add"), form)
    assert text in html.unescape(page.content.decode())
    assert catalog.export_catalog() == {"models": []}


def test_a_flag_is_refused_when_no_node_has_an_engine_that_knows_it() -> None:
    entry = {"name": "q", "profile": {"engine": "vllm", "model": "/m/q", "extra_args": ["--swap-space", "4"]}}
    assert catalog.read_entry(entry)  # nobody has said which version runs
    Node.objects.filter(pk=ready_node("a").node_id).update(engines={"vllm": "0.32.0"})
    with pytest.raises(FleetError, match=r"the vllm 0\.32\.0 of this node has no such option"):
        catalog.read_entry(entry)
    Node.objects.filter(pk=ready_node("b").node_id).update(engines={"vllm": "0.8.5"})
    assert catalog.read_entry(entry)


def test_pages_show_the_command_with_who_decided_each_part_and_no_secret(admin_client: Client) -> None:
    profile = {"engine": "vllm", "model": "/m/q", "tensor_parallel": 2, "nodes": 2, "env": {"HF_TOKEN": "CANARY"}}
    catalog.apply_catalog({"models": [{"name": "q", "profile": profile}]}, actor="t")
    row = CatalogModel.objects.get(name="q")
    text = admin_client.get(reverse("admin:fleet_catalogmodel_change", args=[row.pk])).content.decode()
    assert "vllm serve /m/q --host NODE" in text
    assert "--node-rank 1" in text
    cells = re.findall(r"<td data-head[^>]*>([^<]*)</td>", text)
    rows = list(zip(cells, cells[1:], cells[2:], strict=False))
    assert ("--tensor-parallel-size", "-", "user") in rows
    assert ("VLLM_API_KEY", "(secret)", "llmgw") in rows
    assert ("HF_TOKEN", "(secret)", "user") in rows


def test_a_model_s_page_says_where_each_copy_runs(admin_client: Client) -> None:
    admission = ready_node()
    model(replicas=1)
    tick()
    make_ready(admission)
    page = reverse("admin:fleet_catalogmodel_change", args=[CatalogModel.objects.get().pk])
    node = Node.objects.get()
    on = f'<td data-head="on"><a href="{reverse("admin:fleet_node_change", args=[node.pk])}">gpu-01</a></td>'
    assert on in admin_client.get(page).content.decode()
    Node.objects.update(status="unreachable")
    assert "gpu-01 (unreachable)" in admin_client.get(page).content.decode()
