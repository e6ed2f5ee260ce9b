"""Keys in the admin, the API and the command line; what the feed tells the routers and takes in from them."""

import io
import json
import os
import re
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from agent_client.profile import KEY_LIMITS, parse_catalog
from fleet import doorbell
from fleet.models import CatalogModel
from fleet.services import catalog
from routing import feed
from routing.domain.timers import Timers
from routing.keys import Key, authenticate, digest
from routing.models import ApiKey, Ejection, Usage
from routing.services import create_key, revoke_key
from routing.table import is_fresh, mark_of, parse
from tests.e2e.harness import ROOT

pytestmark = pytest.mark.django_db


def works(text: str) -> bool:
    """Whether the routers, told now, let it in."""
    return isinstance(authenticate(parse(feed.document()).keys, text, datetime.now(UTC)), Key)


@pytest.fixture
def api() -> Client:
    _, text = create_key(name="manager", may_manage=True)
    return Client(headers={"authorization": f"Bearer {text}"})


def send(api: Client, method: str, path: str, **body: Any) -> tuple[int, Any]:
    answer = getattr(api, method)(f"/api/v1/{path}", json.dumps(body), content_type="application/json")
    return answer.status_code, answer.json()


def test_a_key_made_in_the_api_works_is_shown_once_and_can_be_revoked(api: Client) -> None:
    status, made = send(api, "post", "keys/", name="ci", allowed_models=["m"], requests_per_minute=5)
    assert status == 201
    assert works(made["key"])
    listed = api.get("/api/v1/keys/").content.decode()
    assert made["key"] not in listed
    assert ApiKey.objects.get(name="ci").sha256 not in listed
    assert send(api, "patch", f"keys/{made['id']}/", tokens_per_month=7)[1]["tokens_per_month"] == 7
    key = parse(feed.document()).keys[made["prefix"]]
    assert (key.limits.requests_per_minute, key.limits.tokens_per_month) == (5, 7)
    assert send(api, "post", f"keys/{made['id']}/revoke/")[1]["revoked_at"]
    assert not works(made["key"])
    assert send(api, "post", "keys/", name="ci")[0] == 409
    assert send(api, "post", "keys/", name="x", allowed_models="m")[0] == 400
    assert send(api, "post", "keys/", name="x", concurrency=0)[0] == 400


@pytest.mark.parametrize(("name", "most"), KEY_LIMITS.items())
def test_a_limit_is_no_larger_than_the_routers_can_count(api: Client, name: str, most: int) -> None:
    for value, status in ((most, 201), (most + 1, 400), (2**63 - 1, 400), (10**30, 400)):
        body = json.dumps({"name": f"k{value}", name: value})
        assert api.post("/api/v1/keys/", body, content_type="application/json").status_code == status


def test_a_key_made_in_the_admin_is_shown_once(admin_client: Client) -> None:
    data = {"name": "page", "allowed_models": "null", "concurrency": "3"}
    page = admin_client.post(reverse("admin:routing_apikey_add"), data, follow=True).content.decode()
    text = page[(at := page.index("llmgw_")) : at + 58]
    assert works(text)
    assert ApiKey.objects.get().concurrency == 3
    changelist = reverse("admin:routing_apikey_changelist")
    assert text not in admin_client.get(changelist).content.decode()
    revoke = {"action": "revoke", "_selected_action": [ApiKey.objects.get().pk]}
    assert "0 requests in the last day" in admin_client.post(changelist, revoke).content.decode()
    assert ApiKey.objects.get().revoked_at is None  # it is asked first
    admin_client.post(changelist, {**revoke, "confirmed": "yes"})
    assert not works(text)


def test_a_key_made_on_the_command_line_has_its_limits() -> None:
    out = io.StringIO()
    call_command("router_key", "cli", "--models=a,b", "--concurrency=2", "--expires=2999-01-01", stdout=out)
    assert works(out.getvalue().strip())
    row = ApiKey.objects.get()
    assert (row.allowed_models, row.concurrency) == (["a", "b"], 2)
    assert row.expires_at == datetime(2999, 1, 1, tzinfo=UTC)
    for wrong, why in (("2020-01-01", "'2020-01-01' is over"), ("soon", "'soon' is no date")):
        with pytest.raises(CommandError, match=why):
            call_command("router_key", "late", f"--expires={wrong}")
    with pytest.raises(CommandError, match="there is one of that name"):
        call_command("router_key", "cli")


@pytest.mark.parametrize("change", ["create", "revoke"])
def test_the_routers_are_rung_when_a_key_changes(
    monkeypatch: pytest.MonkeyPatch, change: str, django_capture_on_commit_callbacks: Any
) -> None:
    from fleet import doorbell

    rung: list[str] = []
    monkeypatch.setattr(doorbell, "_publish", lambda channel, payload: rung.append(channel))
    with django_capture_on_commit_callbacks(execute=True):
        row, _ = create_key(name="k")
    if change == "revoke":
        rung.clear()
        with django_capture_on_commit_callbacks(execute=True):
            revoke_key(row, now=datetime.now(UTC))
    assert doorbell.ROUTES_CHANNEL in rung


# -- how a model is served --------------------------------------------------------------------------------------------

ROUTING = {
    "timers": {"connect": 5.0, "first_byte": 600.0, "between_bytes": 60.0, "total": 3600.0},
    "concurrency": 4,
    "queue": 2,
    "queue_seconds": 12.0,
    "hold_seconds": 1.5,
    "affinity": False,
    "sticky": "X-Session",
}
OUTSIDE = {"name": "m", "endpoints": [{"url": "http://10.0.0.5:8000"}]}


def check_route(document: dict[str, Any]) -> None:
    route = parse(document).routes["m"]
    assert route.timers == Timers(connect=5.0, first_byte=600.0, between_bytes=60.0, total=3600.0)
    assert (route.concurrency, route.queue, route.queue_seconds, route.hold_seconds) == (4, 2, 12.0, 1.5)
    assert (route.affinity, route.sticky) == (False, b"x-session")


def test_how_a_model_is_served_reaches_the_routers_from_a_file_and_back() -> None:
    file = {"models": [OUTSIDE | {"routing": ROUTING}]}
    catalog.apply_catalog(file, actor="t")
    check_route(feed.document())
    assert catalog.export_catalog()["models"][0]["routing"] == ROUTING
    assert catalog.apply_catalog(catalog.export_catalog(), actor="t") == ()
    (change,) = catalog.apply_catalog({"models": [OUTSIDE | {"routing": {"concurrency": 8}}]}, actor="t")
    assert "routing.concurrency: 4 → 8" in str(change)
    check_route(feed.document_of_catalog(parse_catalog(file)))  # a router alone


def test_how_a_model_is_served_changes_by_api_without_a_new_revision(
    api: Client, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    profile = {"engine": "echo", "gpus": 0}
    assert send(api, "post", "models/", name="m", profile=profile)[0] == 201
    before = CatalogModel.objects.get().revision
    rung: list[str] = []
    monkeypatch.setattr(doorbell, "_publish", lambda channel, payload: rung.append(channel))
    with django_capture_on_commit_callbacks(execute=True):
        assert send(api, "put", "models/m/", profile=profile, routing=ROUTING)[0] == 200
    assert doorbell.ROUTES_CHANNEL in rung
    assert CatalogModel.objects.get().revision == before
    check_route(feed.document())
    status, problem = send(api, "put", "models/m/", profile=profile, routing={"sticky": "X Session", "quue": 3})
    assert (status, problem["code"]) == (400, "invalid_catalog")
    assert "cannot use m.routing.sticky = 'X Session': the name of a header is needed" in problem["detail"]
    assert "did you mean `queue`?" in problem["hint"]


def test_how_a_model_is_served_changes_in_the_admin(admin_client: Client) -> None:
    catalog.apply_catalog({"models": [OUTSIDE]}, actor="t")
    url = reverse("admin:fleet_catalogmodel_change", args=[CatalogModel.objects.get().pk])
    form = {"aliases": "[]", "replicas": 1, "profile": "", "endpoints": json.dumps(OUTSIDE["endpoints"])}
    page = admin_client.post(url, form | {"routing": json.dumps({"timers": {"total": 0}})})
    assert "cannot use m.routing.timers.total = 0: a number above 0" in page.content.decode()
    assert admin_client.post(url, form | {"routing": json.dumps(ROUTING)}).status_code == 302
    check_route(feed.document())


# -- usage ------------------------------------------------------------------------------------------------------------


def row(**more: Any) -> dict[str, Any]:
    return {
        "uid": str(uuid.uuid4()),
        "at": time.time(),
        "key": None,
        "model": "m",
        "endpoint": "e",
        "path": "/v1/chat/completions",
        "status": 200,
        "completed": True,
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "seconds": 0.1,
        **more,
    }


def spool(folder: Path, name: str, *rows: Any) -> Path:
    path = folder / f"{name}.ready"
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in rows))
    return path


def test_usage_is_stored_once_however_often_its_file_is_read(tmp_path: Path) -> None:
    rows = [row() for _ in range(5)]
    for _ in range(2):
        spool(tmp_path, "a", *rows)
        assert feed.ingest(tmp_path) == 5
    assert Usage.objects.count() == 5
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bad", ["{", '{"uid": 1}', json.dumps(row(uid="x")), json.dumps(row(at=1e30)), "\x00"])
def test_a_row_that_cannot_be_read_is_set_aside_and_stops_no_other(tmp_path: Path, bad: str) -> None:
    path = spool(tmp_path, "a", row(), bad, row(completion_tokens=2**80))
    spool(tmp_path, "b", row())
    feed.ingest(tmp_path)
    assert Usage.objects.count() == 3
    assert [each.name for each in tmp_path.iterdir()] == [path.with_suffix(".bad").name]


def test_the_months_tokens_are_told_for_keys_that_have_a_budget(tmp_path: Path) -> None:
    budgeted, _ = create_key(name="b", tokens_per_month=100)
    free, _ = create_key(name="f")
    last_month = datetime.now(UTC).replace(day=1, hour=0, minute=0).timestamp() - 3600
    rows = [row(key=str(budgeted.pk)), row(key=str(budgeted.pk), completion_tokens=None), row(key=str(free.pk))]
    spool(tmp_path, "a", *rows, row(key=str(budgeted.pk), at=last_month))
    feed.ingest(tmp_path)
    used = feed.used_tokens(datetime.now(UTC))
    assert used == {budgeted.pk: 10}
    assert parse(feed.document(used)).keys[budgeted.prefix].used_tokens == 10


# -- ejections --------------------------------------------------------------------------------------------------------


def test_f46_who_is_left_out_is_shown_with_reason_and_expiry_until_it_returns(
    tmp_path: Path, api: Client, admin_client: Client
) -> None:
    now = time.time()
    out = {"endpoint": "m/1#2", "model": "m", "reason": "refused", "failures": 2, "since": now, "until": now + 9}
    (tmp_path / "0.json").write_text(json.dumps({"ejections": [out]}))
    for _ in range(2):
        feed.note_ejections(tmp_path)
        (shown,) = api.get("/api/v1/ejections/").json()["results"]
        assert (shown["endpoint"], shown["reason"], shown["failures"]) == ("m/1#2", "refused", 2)
        assert shown["until"] > shown["since"]
    assert "refused" in admin_client.get(reverse("admin:routing_ejection_changelist")).content.decode()
    (tmp_path / "0.json").write_text(json.dumps({"ejections": []}))
    feed.note_ejections(tmp_path)
    assert not Ejection.objects.exists()


def test_the_feed_says_when_it_has_seen_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "routes.json"
    told = feed.Feed(path, tmp_path, tmp_path, lambda: None)
    with monkeypatch.context() as away:
        away.setattr(feed, "document", refuse)
        with pytest.raises(OperationalError):
            told._publish()
    assert not mark_of(path).exists()
    told._publish()
    os.utime(mark_of(path), (0, 0))
    assert not is_fresh(path, time.time())
    told._publish()  # nothing has changed, but that is known
    assert is_fresh(path, time.time())


def refuse(*_: object) -> None:
    raise OperationalError("the database is away")


def run_without_database(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "LLMGW_STATE_DIR": str(folder), "DATABASE_URL": "", "DJANGO_SETTINGS_MODULE": ""}
    env = {name: value for name, value in env.items() if value}
    argv = [sys.executable, str(ROOT / "manage.py"), "router-key", *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)


def test_without_a_database_a_key_comes_with_its_line_for_a_catalog_file(tmp_path: Path) -> None:
    done = run_without_database(tmp_path, "ci", "--models=m", "--expires=2999-01-01", "--concurrency=2")
    assert done.returncode == 0, done.stderr
    first, line = done.stdout.strip().splitlines()
    (entry,) = yaml.safe_load(line)
    assert entry["sha256"] == digest(first.rsplit(" ", 1)[1])
    key = parse_catalog({"models": [], "keys": [entry]}).keys[0]
    assert (key.models, key.expires, key.limits) == (("m",), datetime(2999, 1, 1, tzinfo=UTC), {"concurrency": 2})
    refused = run_without_database(tmp_path, "ci", "--manage")
    assert refused.returncode != 0
    assert "cannot make the key ci" in refused.stderr


def test_usage_begins_with_the_last_day_by_model(admin_client: Client) -> None:
    for status, completed in ((200, True), (200, False), (503, True)):
        fields = {"status": status, "completed": completed, "prompt_tokens": 1_500_000, "seconds": 1.23456}
        Usage.objects.create(uid=uuid.uuid4(), at=timezone.now(), model="qwen", **fields)
    Usage.objects.create(uid=uuid.uuid4(), at=timezone.now() - timedelta(days=2), model="old")
    page = admin_client.get(reverse("admin:routing_usage_changelist")).content.decode()
    day = page[page.index('aria-label="The last day"') :].partition("</section>")[0]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", day) == ["qwen", "3", "2", "4.5 M", "0"]
    assert "1.23 s" in page


def test_the_list_of_keys_tells_state_limits_and_the_months_tokens(admin_client: Client) -> None:
    row, _ = create_key(name="ci", requests_per_minute=600, tokens_per_month=5_000_000_000)
    Usage.objects.create(
        uid=uuid.uuid4(), at=timezone.now(), model="q", key=row, prompt_tokens=7, completion_tokens=9000
    )
    page = admin_client.get(reverse("admin:routing_apikey_changelist")).content.decode()
    for words in ("in use", "600 requests/min, 5 G tokens/month", "9,007"):
        assert words in page
