"""A name that is misspelt is never passed over: of a filter, or of a field in a body, on every route that there is."""

import json
from typing import Any

import pytest
from django.test import Client

from fleet.models import Node, Replica
from routing.models import ApiKey
from tests.fleet.test_hostile_requests import ROUTES, address, api, ask, changes

pytestmark = pytest.mark.django_db
__all__ = ["api"]  # a fixture

#: What hands a query on unread, or reads names of its own.
ELSEWHERE = {"api/v1", "api/v1/", "api/v1/schema/", "api/v1/schema"}


@pytest.mark.parametrize("query", ["stat=ready", "Status=ready", "ordering=name", "page=2", "search=x", "%00=1"])
def test_a_query_that_is_not_known_is_refused_everywhere(api: Client, query: str) -> None:
    asked = 0
    for route in ROUTES:
        at = address(route)
        if route in ELSEWHERE or ask(api, "GET", at).status_code != 200:
            continue
        told = ask(api, "GET", f"{at}?{query}")
        asked += 1
        if "%00" in query:  # wherever it stands
            assert (told.status_code, told.json()["code"]) == (400, "parse_error"), at
            continue
        assert (told.status_code, told.json()["code"]) == (400, "invalid"), at
        assert query.partition("=")[0] in told.json()["errors"], at
    assert asked > 8


def test_a_refused_query_names_what_there_is(api: Client) -> None:
    told = ask(api, "GET", "/api/v1/nodes/?stat=ready").json()
    text = "cannot use what was sent: stat: there is no such parameter; there are limit, offset, schedulable, status"
    assert told["detail"] == text
    told = ask(api, "GET", "/api/v1/nodes/gpu-07/?status=ready").json()
    assert told["errors"] == {"status": ["there is no such parameter; there is none here"]}


WRONG = [
    "/api/v1/nodes/?status=redy",
    "/api/v1/nodes/?status=",
    "/api/v1/nodes/?schedulable=banana",
    "/api/v1/nodes/?schedulable=",
    "/api/v1/nodes/?status=ready&status=lost",
    "/api/v1/replicas/?state=up",
    "/api/v1/replicas/?wish=RUN",
    "/api/v1/replicas/?model__name=",
    "/api/v1/events/?severity=bad",
    "/api/v1/events/?limit=1&limit=2",
]


@pytest.mark.parametrize("at", WRONG)
def test_a_value_that_can_match_nothing_is_refused(api: Client, at: str) -> None:
    told = ask(api, "GET", at)
    assert told.status_code == 400
    assert list(told.json()["errors"]) == [at.partition("?")[2].partition("=")[0]]


@pytest.mark.parametrize(("value", "count"), [("true", 1), ("false", 0), ("True", 1), ("0", 0), ("1", 1)])
def test_a_filter_filters(api: Client, value: str, count: int) -> None:
    assert ask(api, "GET", f"/api/v1/nodes/?schedulable={value}&status=ready&limit=5").json()["count"] == count


def test_a_field_that_is_not_known_is_refused_everywhere(api: Client) -> None:
    for method, at in changes(api):
        if method == "DELETE":
            continue
        told = ask(api, method, at, json.dumps({"zz_none": 1}).encode())
        assert told.status_code == 400, (method, at, told.content)
        assert "zz_none" in told.json()["detail"], (method, at)


UNREAD = [
    ("POST", "api/v1/nodes/%(name)s/cordon/", {"reasn": "fan"}),
    ("POST", "api/v1/nodes/%(name)s/drain/", {"deadline": 60}),
    ("POST", "api/v1/replicas/%(uid)s/stop/", {"deadline_seconds": 60}),  # it would cut answers at once
    ("POST", "api/v1/replicas/%(uid)s/drain/", {"deadline_seconds": 60, "reason": "fan"}),
    ("POST", "api/v1/models/%(pk)s/plan/", {"profile": {"engine": "echo", "gpus": 0}, "modelconfig": {}}),
    ("POST", "api/v1/keys/", {"name": "x", "request_per_minute": 60}),  # a key without the limit
    ("POST", "api/v1/keys/", {"name": "x", "prefix": "abcdefgh"}),
    ("PATCH", "api/v1/keys/%(pk)s/", {"revoked_at": "2020-01-01T00:00:00Z"}),
    ("PUT", "api/v1/keys/%(pk)s/", {"name": "manager", "may_manage": True, "id": 9}),
]


@pytest.mark.parametrize(("method", "route", "body"), UNREAD)
def test_what_would_not_be_done_is_refused_and_nothing_is(
    api: Client, method: str, route: str, body: dict[str, Any]
) -> None:
    before = [list(table.objects.values()) for table in (Node, Replica, ApiKey)]
    told = api.generic(method, address(route), json.dumps(body), content_type="application/json")
    assert (told.status_code, told.json()["code"]) == (400, "invalid")
    assert list(told.json()["errors"]) == [list(body)[-1]]
    assert [list(table.objects.values()) for table in (Node, Replica, ApiKey)] == before


def test_a_key_may_be_sent_back_as_it_came(api: Client) -> None:
    at = address("api/v1/keys/%(pk)s/")
    shown = ask(api, "GET", at).json()
    assert ask(api, "PUT", at, json.dumps(shown | {"concurrency": 3}).encode()).json() == shown | {"concurrency": 3}
