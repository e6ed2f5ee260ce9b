"""A secret is shown once, where it is made, or where it was written: on no other page, answer, event or log."""

import html
import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from agent_client.protocol.states import ShardState
from fleet.models import CatalogModel, Event, Node, Replica, Rollout, Shard
from fleet.services import catalog
from fleet.services.errors import FleetError
from routing.models import ApiKey
from tests.fleet.test_hostile_requests import ROUTES, THERE, address
from tests.fleet.test_reconciler import model, ready_node, tell, tick
from tests.fleet.test_rollouts_and_drains import answer, serving

pytestmark = pytest.mark.django_db

PASSWORD = "canary-password-of-an-admin"
ENV = {"HF_TOKEN": "hf_canary_env", "MY_API_KEY": "canary-api-key", "PLAIN": "seen"}
WORDS = ["--hf-token", "hf_canary_word", "--some-key=canary-word-key"]
LATER = {"HF_TOKEN": "hf_canary_later", "MY_API_KEY": "canary-api-key-later", "PLAIN": "seen"}


class Told:
    """All that was said in a test, by where."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def add(self, where: str, text: str) -> None:
        self.texts[where] = html.unescape(text)

    def refuse(self, secrets: list[str]) -> None:
        found = {(where, secret) for where, text in self.texts.items() for secret in secrets if secret in text}
        assert not found, sorted(found)


def walk_pages(client: Client, told: Told) -> None:
    for table in admin.site._registry:
        name = f"admin:{table._meta.app_label}_{table._meta.model_name}"
        at = [reverse(f"{name}_changelist")]
        for row in table._default_manager.all():
            own = ("change", "history", "delete")
            at += [reverse(f"{name}_{page}", args=[row.pk]) for page in own if not is_entry(table, page)]
        for page in at:
            told.add(page, client.get(page, follow=True).content.decode())
    told.add("home", client.get(reverse("admin:index")).content.decode())


def is_entry(table: Any, page: str) -> bool:
    """The form in which the entry is written shows it."""
    return table is CatalogModel and page == "change"


def walk_api(client: Client, told: Told) -> None:
    assert set(THERE) == {"keys", "models", "nodes", "replicas"}
    for route in ROUTES:
        if route in ("api/v1/models/", "api/v1/models/%(pk)s/"):  # the entry, as it was written
            continue
        at = address(route, "" if "nodes" not in route else Node.objects.get().name)
        told.add(at, client.get(at).content.decode())


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Told:
    caplog.set_level("DEBUG")
    return Told()


def test_no_secret_is_told_anywhere_but_where_it_was_written(
    told: Told, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    User.objects.create_superuser("ann", password=PASSWORD)
    staff = Client(raise_request_exception=False)
    login = staff.post(reverse("admin:login"), {"username": "ann", "password": PASSWORD})
    assert login.status_code == 302

    # a node joins and serves
    admission = serving(env=ENV, extra_args=WORDS)
    credential = admission.credential
    assert credential
    engine_key = Replica.objects.get().engine_key
    assert len(engine_key) > 20

    # keys: each text once, in the answer to its making
    made = staff.post(reverse("admin:routing_apikey_add"), {"name": "ci", "allowed_models": ""}, follow=True)
    shown = next(word for word in made.content.decode().split() if word.startswith("llmgw_"))
    manage = io.StringIO()
    call_command("router_key", "manager", "--manage", stdout=manage)
    manager = manage.getvalue().split()[-1]
    capfd.readouterr()
    api = Client(headers={"authorization": f"Bearer {manager}"}, raise_request_exception=False)
    third = api.post("/api/v1/keys/", json.dumps({"name": "x"}), content_type="application/json").json()["key"]
    ApiKey.objects.exclude(name="manager").delete()

    # the profile changes: by API, by form, by file; a rollout asks, fails and is rolled back
    body = json.dumps({"profile": {"env": LATER}})
    assert api.patch("/api/v1/models/qwen/", body, content_type="application/json").status_code == 200
    tick()
    answer(admission)
    tick()
    file = tmp_path / "catalog.yaml"
    entry = catalog.export_catalog()["models"][0]
    entry["profile"]["env"] = ENV
    file.write_text(json.dumps({"models": [entry]}))
    for words in (
        ["validate", str(file)],
        ["diff", str(file)],
        ["apply", "--dry-run", str(file)],
        ["apply", str(file)],
    ):
        out = io.StringIO()
        call_command("catalog", *words, stdout=out)
        told.add(f"catalog {words[:2]}", out.getvalue())
    wrong = {"name": "e", "endpoints": [{"url": "http://user:canary-of-a-url@10.0.0.5:8000"}]}
    with pytest.raises(FleetError) as refused:
        catalog.read_entry(wrong)
    told.add("a refused endpoint", refused.value.detail)

    # something fails, and one more has no place
    shard = Shard.objects.order_by("-pk")[0]
    tell(admission, shard, ShardState.FAILED, code="exited", detail="cannot run", exit_code=1)
    tick()
    model("large", tensor_parallel=8, env=ENV, extra_args=WORDS)
    tick()
    for words in (["explain", "qwen"], ["explain", "large"]):
        out = io.StringIO()
        call_command(*words, stdout=out)
        told.add(" ".join(words), out.getvalue())
    for name in ("qwen", "large"):
        told.add(f"plan of {name}", api.post(f"/api/v1/models/{name}/plan/").content.decode())
    form = {"name": "m", "aliases": "", "replicas": 1, "endpoints": "", "routing": "", "_plan": "1"}
    page = staff.post(
        reverse("admin:fleet_catalogmodel_add"),
        form | {"profile": json.dumps({"engine": "vllm", "model": "/m", "env": {"HF_TOKEN": "hf_canary_draft"}})},
    )
    plan = page.content.decode().partition('id="plan"')[2].partition("<form")[0].partition("<textarea")[0]
    told.add("plan of a draft", plan.partition("A new model")[0])

    walk_pages(staff, told)
    THERE["keys"] = lambda: str(ApiKey.objects.get().pk)
    walk_api_(api, told)
    for number, event in enumerate(Event.objects.all()):
        told.add(f"event {number} {event.kind}", f"{event.text} {json.dumps(event.data)}")
    for line in LogEntry.objects.all():
        told.add(f"history {line.pk}", f"{line.object_repr} {line.change_message} {line.get_change_message()}")
    told.add("log", caplog.text)
    written = capfd.readouterr()
    told.add("stderr", written.err + written.out)

    assert Rollout.objects.exists()
    assert len(told.texts) > 100
    secrets = [
        PASSWORD,
        credential,
        engine_key,
        shown,
        manager,
        third,
        *WORDS[1:2],
        "canary-word-key",
        "canary-of-a-url",
    ]
    secrets += [value for env in (ENV, LATER) for name, value in env.items() if name != "PLAIN"] + ["hf_canary_draft"]
    told.refuse(secrets)
    assert "canary" not in json.dumps(told.texts)


def walk_api_(client: Client, told: Told) -> None:
    before = THERE["replicas"], THERE["nodes"]
    THERE["replicas"] = lambda: str(Replica.objects.first().uid)  # type: ignore[union-attr]
    try:
        walk_api(client, told)
    finally:
        THERE["replicas"], THERE["nodes"] = before


#: Columns that no list may be asked by: each answer would tell a letter more.
COLUMNS = [
    ("fleet", "replica", "engine_key"),
    ("fleet", "node", "credential_sha256"),
    ("routing", "apikey", "sha256"),
    ("auth", "user", "password"),
    ("fleet", "catalogmodel", "profile__env__HF_TOKEN"),
    ("fleet", "profilerevision", "profile__env__HF_TOKEN"),
    ("fleet", "drycheck", "spec__profile__env__HF_TOKEN"),
]


@pytest.mark.parametrize(("app", "table", "column"), COLUMNS)
def test_a_list_can_not_be_searched_for_the_beginning_of_a_secret(
    admin_client: Client, app: str, table: str, column: str
) -> None:
    ready_node()
    model(env=ENV)
    tick()
    admin_client.raise_request_exception = False
    for lookup in ("startswith", "regex", "gt", "exact"):
        at = f"{reverse(f'admin:{app}_{table}_changelist')}?{column}__{lookup}=a"
        assert admin_client.get(at).status_code == 400, at
