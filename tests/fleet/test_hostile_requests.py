"""What nobody should send to the REST API, to every route and method that there is: a sentence, and no crash."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.exceptions import BadRequest
from django.db import DataError, transaction
from django.test import Client
from django.urls import URLResolver, get_resolver
from django.utils.regex_helper import normalize

from fleet.api.problems import handle
from fleet.models import Gpu, Replica
from routing.models import ApiKey
from routing.services import create_key
from tests.e2e.harness import ROOT
from tests.fleet.test_reconciler import make_ready, model, ready_node, tick
from tests.support.examples import first_of
from tests.support.ports import free_port
from tests.support.postgres import PrivatePostgres, bin_folder

pytestmark = pytest.mark.django_db

CHANGES = ("POST", "PUT", "PATCH", "DELETE")
#: Far more of a sentence than anybody reads.
MOST_DETAIL = 10_000
#: Bodies that no view should ever see.
UNREADABLE = {
    "list": b"[]",
    "null": b"null",
    "number": b"1",
    "text": b'"x"',
    "cut": b"{",
    "bytes": b"\xff\xfe",
    "deep list": b"[" * 100_000,
    "deep object": b'{"a":' * 50_000,
    "closed and deep": b'{"a":' + b"[" * 60 + b"]" * 60 + b"}",
    "twice": b'{"name": "a", "name": "b"}',
    "NaN": b'{"replicas": NaN}',
    "Infinity": b'{"replicas": -Infinity}',
    "1e400": b'{"deadline_seconds": 1e400}',
    "10^30": b'{"replicas": 1' + b"0" * 30 + b"}",
    "digits": b'{"replicas": ' + b"9" * 10_000 + b"}",
    "surrogate": b'{"reason": "\\ud800"}',
    "surrogate within": b'{"profile": {"env": [{"a": "x\\udfff"}]}}',
    "surrogate in a key": b'{"\\ud800": 1}',
    "NUL": b'{"reason": "\\u0000"}',
    "too large": b'{"reason": "' + b"x" * 2_700_000 + b'"}',
    "form": b"a=b",
    "empty": b"  ",
}
TYPES = (
    "text/plain",
    "application/xml",
    "multipart/form-data",
    "multipart/form-data; boundary=x",
    "application/x-www-form-urlencoded",
    "nonsense",
)
CHARSETS = ("utf-16", "latin-1", "utf-7", "nope")
TEXTS = ["", " ", "x" * 1_000_000, "é💥", "../../etc", "a/b/../c", "a\nb\x07", "NaN", "1e999", "-inf", "null", "٣"]
ODD = [
    None,
    True,
    0,
    -1,
    0.0001,
    1.5,
    1e308,
    -(2**63),
    2**63 - 1,
    [],
    {},
    [[]],
    {"a": 1},
    [None],
    ["x"] * 10_000,
    *TEXTS,
]
#: Fields that some view reads.
FIELDS = [
    "name",
    "aliases",
    "replicas",
    "profile",
    "endpoints",
    "routing",
    "model_config",
    "reason",
    "deadline_seconds",
]
FIELDS += [
    "uuid",
    "allowed_models",
    "requests_per_minute",
    "tokens_per_month",
    "concurrency",
    "expires_at",
    "may_manage",
]
PROFILE = [
    "engine",
    "model",
    "gpu_class",
    "gpus",
    "tensor_parallel",
    "max_model_len",
    "dtype",
    "quantization",
    "affinity",
]
PROFILE += ["kv_cache_dtype", "anti_affinity", "node_selector", "priority", "extra_args", "env", "options", "preempts"]
NUMBERS = ["-1", "0", "99999999999999999999", "9223372036854775807", "x", "", "1.5", "%00", "%D9%A3", "9" * 5000]
QUERIES = [f"{name}={value}" for name in ("limit", "offset") for value in NUMBERS]
QUERIES += [
    f"{name}={value}"
    for name in ("kind", "severity", "node__name", "model__name", "state", "wish", "status", "schedulable", "lang")
    for value in ("%00", "%ff", "%ED%A0%80", "x" * 5000, "99999999999999999999")
]
QUERIES += ["format=zz", "format=%00", "limit=1&offset=9223372036854775808", "&" * 2000, "%00=%00"]
NAMES = [
    "nope",
    "%00",
    "%ff",
    "a%00b",
    "%ED%A0%80",
    "a%2fb",
    "..%2f..",
    "99999999999999999999",
    "-1",
    "a" * 3000,
    "%0a",
]


#: What stands at the place of a route's parameter, by the resource; a new resource has its own here.
THERE: dict[str, Callable[[], str]] = {
    "keys": lambda: str(ApiKey.objects.get().pk),
    "models": lambda: "qwen",
    "nodes": lambda: "gpu-07",
    "replicas": lambda: str(Replica.objects.get().uid),
}


def templates(patterns: list[Any], before: str = "") -> Iterator[str]:
    """Each route of the REST API, as `api/v1/nodes/%(name)s/cordon/`."""
    for each in patterns:
        if isinstance(each, URLResolver):
            yield from templates(each.url_patterns, before + str(each.pattern))
        elif (at := before + normalize(each.pattern.regex.pattern)[0][0]).startswith("api/v1"):
            yield at


ROUTES = sorted(set(templates(get_resolver().url_patterns)))
NAMED = [route for route in ROUTES if "%(" in route]


def address(route: str, name: str = "") -> str:
    resource = route.split("/")[2]
    return "/" + re.sub(r"%\(\w+\)s", lambda found: name or THERE[resource](), route)


@pytest.fixture
def api() -> Client:
    admission = ready_node("gpu-07")
    model()
    tick()
    tick()
    make_ready(admission)
    _, text = create_key(name="manager", may_manage=True)
    return Client(headers={"authorization": f"Bearer {text}"}, raise_request_exception=False)


def ask(client: Client, method: str, at: str, body: bytes = b"", kind: str = "application/json") -> Any:
    """The answer, of which nothing stays: each request finds the same fleet. What refuses does so in a sentence."""
    with transaction.atomic():
        answer = client.generic(method, at, body, content_type=kind)
        transaction.set_rollback(True)
    what = f"{method} {at[:100]} {kind!r} {body[:100]!r}: {answer.status_code} {answer.content[:300]!r}"
    assert answer.status_code < 500, what
    if answer.status_code >= 400:
        assert answer["Content-Type"] == "application/problem+json", what
        told = answer.json()
        assert told["status"] == answer.status_code, what
        assert told["detail"].startswith("cannot"), what
        assert len(told["detail"]) <= MOST_DETAIL, what
        assert told["code"], what
    return answer


def changes(api: Client) -> list[tuple[str, str]]:
    """Each method and address that may change something."""
    asked = [(method, address(route)) for route in ROUTES for method in CHANGES]
    return [(method, at) for method, at in asked if ask(api, method, at).status_code not in (404, 405)]


def test_the_walk_goes_everywhere(api: Client) -> None:
    assert len(ROUTES) > 25
    assert len(changes(api)) > 18


@pytest.mark.heavy
@pytest.mark.parametrize("name", first_of(UNREADABLE))
def test_a_body_that_is_no_object_is_refused_everywhere(api: Client, name: str) -> None:
    for route in ROUTES:
        for method in CHANGES:
            assert 400 <= ask(api, method, address(route), UNREADABLE[name]).status_code < 500
    for method, at in changes(api):
        answer = ask(api, method, at, UNREADABLE[name])
        assert (answer.status_code, answer.json()["code"]) in ((400, "parse_error"), (413, "too_large")), at


@pytest.mark.parametrize("kind", first_of(TYPES))
def test_what_is_no_json_is_refused_everywhere(api: Client, kind: str) -> None:
    for method, at in changes(api):
        for body in (b"{}", b"a=b", b"--x\r\n", b"\xff"):
            answer = ask(api, method, at, body, kind)
            assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type"), at


@pytest.mark.parametrize("charset", first_of(CHARSETS))
def test_a_charset_changes_nothing(api: Client, charset: str) -> None:
    for route in ROUTES:
        for method in ("GET", *CHANGES):
            ask(api, method, f"{address(route)}?kind=%ff&limit=1", b"{}", f"application/json; charset={charset}")
    answer = ask(api, "POST", address("api/v1/nodes/%(name)s/cordon/"), b"{}", f"application/json; charset={charset}")
    assert answer.status_code == 200


@pytest.mark.heavy
def test_odd_values_crash_nothing(api: Client) -> None:
    for method, at in changes(api):
        for value in ODD:
            ask(api, method, at, json.dumps(dict.fromkeys(FIELDS, value)).encode())


@pytest.mark.long
def test_odd_values_of_one_field_crash_nothing(api: Client) -> None:
    echo = {"name": "fz", "profile": {"engine": "echo", "gpus": 0}}
    node, replica = address("api/v1/nodes/%(name)s/"), address("api/v1/replicas/%(uid)s/")
    for value in ODD:
        for field in FIELDS:
            for method, at, rest in (
                ("POST", "/api/v1/models/", echo),
                ("PATCH", "/api/v1/models/qwen/", {}),
                ("POST", "/api/v1/models/qwen/plan/", {}),
                ("POST", "/api/v1/keys/", {"name": "fz"}),
                ("PATCH", address("api/v1/keys/%(pk)s/"), {}),
            ):
                ask(api, method, at, json.dumps(rest | {field: value}).encode())
        for field in PROFILE:
            body = {"name": "fz", "profile": {"engine": "vllm", "model": "/m/q", field: value}}
            ask(api, "POST", "/api/v1/models/", json.dumps(body).encode())
        for field in ("reason", "deadline_seconds", "uuid"):
            for at in (
                f"{node}cordon/",
                f"{node}drain/",
                f"{node}drain-gpu/",
                f"{replica}drain/",
                f"{replica}restart/",
            ):
                rest = {"uuid": Gpu.objects.order_by("index")[0].uuid}
                ask(api, "POST", at, json.dumps(rest | {field: value}).encode())


@pytest.mark.parametrize("date", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2020-13-01", "0"])
def test_dates_at_the_ends_of_time_crash_nothing(api: Client, date: str) -> None:
    ask(api, "POST", "/api/v1/keys/", json.dumps({"name": "fz", "expires_at": date}).encode())


@pytest.mark.heavy
@pytest.mark.parametrize("route", ROUTES)
def test_odd_queries_crash_nothing(api: Client, route: str) -> None:
    for query in QUERIES:
        ask(api, "GET", f"{address(route)}?{query}")


@pytest.mark.parametrize("route", NAMED)
def test_odd_names_in_addresses_crash_nothing(api: Client, route: str) -> None:
    for name in NAMES:
        for method in ("GET", *CHANGES):
            ask(api, method, address(route, name), b"{}")


@pytest.mark.heavy
@pytest.mark.parametrize("route", ROUTES)
def test_what_a_client_accepts_changes_no_problem(api: Client, route: str) -> None:
    for accept in ("text/html", "image/png", "nonsense", "application/yaml", "*/*;q=x", ""):
        for method in ("GET", "HEAD", "OPTIONS", "DELETE", "TRACE", "FOO"):
            with transaction.atomic():
                answer = api.generic(method, address(route), headers={"accept": accept})
                transaction.set_rollback(True)
            assert answer.status_code < 500
            if answer.status_code >= 400 and method != "HEAD":
                assert answer["Content-Type"] == "application/problem+json", (method, accept, answer.content)
                assert answer.json()["detail"].startswith("cannot")


@pytest.mark.parametrize("checks", [False, True])
def test_who_is_signed_in_to_the_admin_is_told_the_same(admin_user: Any, checks: bool) -> None:
    client = Client(enforce_csrf_checks=checks, raise_request_exception=False)
    client.force_login(admin_user)
    for method in CHANGES:
        for at in ("/api/v1/keys/", "/api/v1/models/m/", "/api/v1/nodes/n/cordon/"):
            for kind in TYPES:
                for body in (b"", b"{}", b"--x\r\n"):
                    ask(client, method, at, body, kind)


def test_pages_have_bounds(api: Client) -> None:
    told = ask(api, "GET", "/api/v1/events/?limit=99999999999999999999").json()
    assert told["detail"] == "cannot use what was sent: limit: a whole number from 1 to 1000 is needed"
    assert set(told["errors"]) == {"limit"}
    page = ask(api, "GET", "/api/v1/events/?limit=1&offset=1").json()
    assert len(page["results"]) == 1
    assert "offset=2" in page["next"]


def test_the_last_that_fits_is_read(api: Client) -> None:
    deep = b'{"profile": {"engine": "echo", "gpus": 0}, "x": ' + b"[" * 40 + b"]" * 40 + b"}"
    assert ask(api, "PUT", "/api/v1/models/fz/", deep).json()["code"] == "invalid_catalog"
    body = json.dumps({"reason": "é💥"}).encode()
    assert ask(api, "POST", "/api/v1/nodes/gpu-07/cordon/", body).json()["cordon_reason"] == "é💥"


@pytest.mark.parametrize(("error", "status"), [(DataError("x" * 9_000), 400), (BadRequest("x" * 9_000), 400)])
def test_what_a_client_did_wrong_beyond_our_reading_is_its_problem(error: Exception, status: int) -> None:
    told = handle(error, {})
    assert told is not None
    assert told.status_code == status
    assert len(told.content) < 5_000


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.skipif("LLMGW_TEST_DATABASE_URL" in os.environ, reason="it is PostgreSQL already")
@pytest.mark.skipif(bin_folder() is None and not os.environ.get("CI"), reason="PostgreSQL is not installed")
def test_all_of_this_holds_on_postgresql() -> None:
    server = PrivatePostgres(free_port())
    try:
        line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", __file__]
        env = os.environ | {"LLMGW_TEST_DATABASE_URL": server.url}
        done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1_800)
    finally:
        server.close()
    assert done.returncode == 0, done.stdout[-4_000:]
