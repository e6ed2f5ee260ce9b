"""The REST API as its page tells it, and its errors as sentences."""

import json
import re
import shlex
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client
from django.urls import resolve
from drf_spectacular.generators import SchemaGenerator

from fleet.models import CatalogModel, Gpu, Replica
from fleet.services import catalog
from routing.models import ApiKey
from routing.services import create_key
from tests.e2e.harness import ROOT
from tests.fleet.test_reconciler import make_ready, model, ready_node, tick

pytestmark = pytest.mark.django_db

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
LINES = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("llmgw ")
]
ECHO = {"name": "echo", "replicas": 1, "profile": {"engine": "echo", "gpus": 0}}


#: What echo, which never ran, and a fleet without an outage say to these instead.
NOT_NOW = dict.fromkeys(("rollout", "pause", "resume", "rollback"), "roll") | {"accept-losses": "loss"}


@pytest.fixture
def api() -> Client:
    _, text = create_key(name="manager", may_manage=True)
    return Client(headers={"authorization": f"Bearer {text}"})


def send(api: Client, method: str, path: str, data: Any = None) -> Any:
    body = "" if data is None else json.dumps(data)
    return api.generic(method.upper(), f"/api/v1/{path}", body, content_type="application/json")


def request_of(line: str, **names: str) -> tuple[str, str, str | None]:
    words = shlex.split(line)[1:]
    method, data, address = "GET", None, ""
    while words:
        word = words.pop(0)
        if word == "-X":
            method = words.pop(0)
        elif word == "-d":
            data = words.pop(0)
        else:
            address = word.replace("$API", "/api/v1")
    for name, value in names.items():
        address = address.replace(f"/{name}/", f"/{value}/")
        data = data.replace(f'"{name}"', f'"{value}"') if data else data
    return method, address, data


def action(method: str, path: str) -> tuple[Any, str]:
    found: Any = resolve(urlsplit(path).path).func
    kind = getattr(found, "cls", None) or found.view_class
    return kind, getattr(found, "actions", {}).get(method.lower(), "")


def test_every_line_of_the_page_does_what_it_says(api: Client) -> None:
    admission = ready_node("gpu-07")
    model()
    tick()
    tick()
    make_ready(admission)
    names = {"UID": str(Replica.objects.get().uid), "1": str(ApiKey.objects.get().pk + 1), "GPU-0": ""}
    names["GPU-0"] = Gpu.objects.order_by("index")[0].uuid
    codes = {}
    for line in LINES:
        method, address, data = request_of(line, **names)
        answer = api.generic(method, address, data or "", content_type="application/json")
        codes[line] = answer.status_code
        verb = address.rstrip("/").rsplit("/", 1)[1]
        if verb in NOT_NOW and answer.status_code in (400, 404):
            assert NOT_NOW[verb] in answer.json()["detail"]
            continue
        assert answer.status_code in (200, 201, 204), (line, answer.content)
    assert 201 in codes.values()


def test_the_page_has_everything_that_can_be_done() -> None:
    paths = SchemaGenerator().get_schema(request=None, public=True)["paths"]
    sample = {"{pk}": "1", "{id}": "1", "{name}": "gpu-07", "{uid}": "UID"}
    there = set()
    for path, methods in paths.items():
        at = re.sub(r"{\w+}", lambda found: sample[found[0]], path)
        there |= {action(method, at) for method in methods if method in ("get", "post", "put", "patch", "delete")}
    told = {action(*request_of(line)[:2]) for line in LINES}
    assert there <= told
    assert len(there) > 25


def test_the_index_says_where_everything_is(api: Client) -> None:
    answer = api.get("/api/v1/").json()
    assert set(answer["resources"]) == {"models", "nodes", "replicas", "events", "keys", "ejections"}
    for address in [*answer["resources"].values(), answer["schema"], answer["schema"].rstrip("/")]:
        assert api.get(urlsplit(address).path).status_code == 200, address


@pytest.mark.parametrize("path", ["", "nodes/", "nothing/", "nothing"])
def test_who_has_no_key_is_told_how_to_get_one(path: str) -> None:
    answer = Client(headers={"authorization": "Basic YWRtaW46YWRtaW4="}).get(f"/api/v1/{path}")
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")
    assert answer.json()["detail"] == "cannot answer: no API key was sent"
    assert "router_key NAME --manage" in answer.json()["hint"]


def test_a_key_of_a_client_is_told_so() -> None:
    _, text = create_key(name="ci")
    answer = Client(headers={"authorization": f"Bearer {text}"}).get("/api/v1/nodes/")
    assert answer.status_code == 401
    assert "the key ci may not use the REST API" in answer.json()["detail"]
    assert "--manage" in answer.json()["hint"]


def test_a_path_that_is_not_there_says_what_is(api: Client) -> None:
    assert "/api/v1/ lists what is there" in api.get("/api/v1/node/").json()["detail"]
    assert api.get("/api/v1/nodes?status=ready")["Location"] == "/api/v1/nodes/?status=ready"
    answer = send(api, "post", "models", ECHO)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "/api/v1/models/ is there" in answer.json()["detail"]
    assert not CatalogModel.objects.exists()


def test_a_model_is_added_once(api: Client) -> None:
    assert send(api, "post", "models/", ECHO).status_code == 201
    again = send(api, "post", "models/", ECHO | {"replicas": 9})
    assert (again.status_code, again.json()["code"]) == (409, "name_taken")
    assert again.json()["detail"] == "cannot add echo: there is a model of that name"
    assert again.json()["hint"] == "PUT replaces it, PATCH changes parts of it"
    assert CatalogModel.objects.get().replicas == 1


def test_a_model_that_is_being_deleted_may_be_added_again(api: Client) -> None:
    catalog.apply_catalog({"models": [ECHO]}, actor="t")
    CatalogModel.objects.update(leaving=True)
    assert send(api, "post", "models/", ECHO).status_code == 201
    assert not CatalogModel.objects.get().leaving


def test_part_of_a_model_is_changed(api: Client) -> None:
    profile = {"engine": "vllm", "model": "/m/q"}
    more = {"aliases": ["default"], "routing": {"queue": 3, "concurrency": 2}, "profile": profile}
    send(api, "post", "models/", ECHO | more)
    patch = {"replicas": 3, "profile": {"max_model_len": 4096}, "routing": {"queue": None}, "aliases": None}
    answer = send(api, "patch", "models/echo/", patch)
    assert answer.status_code == 200
    entry = api.get("/api/v1/models/echo/").json()
    assert answer.json() == entry
    assert entry["replicas"] == 3
    assert (entry["profile"]["engine"], entry["profile"]["max_model_len"]) == ("vllm", 4096)
    assert entry["routing"] == {"concurrency": 2}
    assert "aliases" not in entry
    moved = send(api, "patch", "models/echo/", {"profile": None, "endpoints": ["http://10.0.0.5:8000"]})
    assert "profile" not in moved.json()
    assert send(api, "patch", "models/none/", {}).status_code == 404


WRONG = [
    ("post", "keys/", {"name": ""}, 400, "name: This field may not be blank."),
    ("post", "keys/", {"name": "a", "concurrency": 0, "expires_at": "soon"}, 400, "expires_at: Datetime has wrong"),
    ("post", "keys/", [], 400, "keys and values are needed, not a list"),
    ("post", "keys/", {"name": "manager"}, 409, "there is one of that name"),
    ("post", "nodes/gpu-01/drain/", {"deadline_seconds": "soon"}, 400, "deadline_seconds: A valid number is required."),
    ("post", "nodes/gpu-01/drain-gpu/", {}, 400, "uuid: This field is required."),
    ("post", "nodes/gpu-01/cordon/", ["fan"], 400, "keys and values are needed, not a list"),
    ("post", "nodes/gpu-99/cordon/", {}, 404, "cannot find the node gpu-99: there is none"),
    ("get", "replicas/nothing/", None, 404, "cannot find the replica nothing: there is none"),
    ("get", "keys/77/", None, 404, "cannot find the API key 77: there is none"),
    ("get", "nodes/?status=bad", None, 400, "status: Select a valid choice."),
    ("delete", "nodes/gpu-01/", None, 405, 'Method "DELETE" not allowed.'),
    ("post", "models/", ["x"], 400, "keys and values are needed, not a list"),
    ("put", "models/m/", ["x"], 400, "keys and values are needed, not a list"),
    ("patch", "models/m/", ["x"], 400, "keys and values are needed, not a list"),
    ("post", "models/m/plan/", ["x"], 400, "keys and values are needed, not a list"),
    ("put", "models/m/", {"name": "n", "endpoints": ["http://10.0.0.5:8000"]}, 400, "name: a model can't be renamed"),
]


@pytest.mark.parametrize(("method", "path", "data", "status", "text"), WRONG)
def test_what_is_wrong_is_a_sentence(api: Client, method: str, path: str, data: Any, status: int, text: str) -> None:
    ready_node("gpu-01")
    answer = send(api, method, path, data)
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")
    detail = answer.json()["detail"]
    assert detail.startswith("cannot")
    assert text in detail
    assert "ErrorDetail" not in detail


def test_wrong_fields_are_there_one_by_one(api: Client) -> None:
    answer = send(api, "post", "keys/", {"name": "", "concurrency": 0}).json()
    assert set(answer["errors"]) == {"name", "concurrency"}
    assert answer["errors"]["name"] == ["This field may not be blank."]


def test_a_body_that_is_no_json_is_said(api: Client) -> None:
    answer = api.post("/api/v1/models/", "{", content_type="application/json")
    assert answer.json()["detail"].startswith("cannot read the body: line 1, column 2: Expecting property name")
    assert api.post("/api/v1/models/", "x", content_type="text/plain").status_code == 415
