"""What is answered before any view, or when one breaks: a problem below /api/, a page that says it elsewhere."""

import logging
import re
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import OperationalError
from django.test import Client

from llmgw_site import asgi
from llmgw_site.log import Refused
from routing.services import create_key
from tests.fleet.test_hostile_requests import MOST_DETAIL

#: Codecs that make no text of bytes, that are none, that Python finds odd, and those of text that is not UTF-8.
CHARSETS = (
    "bz2_codec",
    "zlib_codec",
    "hex",
    "rot13",
    "idna",
    "punycode",
    "undefined",
    "nope",
    "a\0b",
    "é",
    "x" * 20_000,
)
CHARSETS += ("utf-16", "utf-7", "latin-1", "utf-8-sig", '"', "")
KINDS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "nonsense")
#: Content types that say where their own parameters' letters come from (RFC 2231), and that nobody can read.
ODD = ("text/plain; charset*=nope''x", "a/b; c*=no\0pe''x", "; charset=nope", "x" * 20_000)


async def over_asgi(path: str, kind: str = "", method: str = "POST", query: bytes = b"") -> tuple[int, str, str]:
    """Status, content type and text, as the web process answers."""
    headers = [(b"host", b"localhost"), *([(b"content-type", kind.encode())] if kind else [])]
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": headers}
    process = ApplicationCommunicator(asgi.http, scope)
    await process.send_input({"type": "http.request", "body": b"{}"})
    start = await process.receive_output(30)
    body = await process.receive_output(30)
    return start["status"], dict(start["headers"])[b"Content-Type"].decode(), body["body"].decode()


def tells_a_problem(status: int, kind: str, text: str) -> bool:
    return kind == "application/problem+json" and '"detail": "cannot' in text and f'"status": {status}' in text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("charset", CHARSETS, ids=lambda text: ascii(text[:12]))
async def test_a_body_of_another_charset_is_refused_before_any_view(kind: str, charset: str) -> None:
    for path in ("/api/v1/nodes/n/cordon/", "/api/v2", "/admin/login/", "/nowhere", "/healthz"):
        for method in ("GET", "POST", "PUT"):
            status, told, text = await over_asgi(path, f"{kind}; charset={charset}", method)
            assert status == 415
            assert len(text) < 1_000
            if path.startswith("/api/"):
                assert tells_a_problem(status, told, text)
            else:
                assert told == "text/plain; charset=utf-8"
                assert text.startswith("cannot read the body: ")


@pytest.mark.parametrize("kind", ODD)
async def test_a_content_type_that_nobody_can_read_is_refused(kind: str) -> None:
    status, told, text = await over_asgi("/api/v1/nodes/n/cordon/", kind)
    assert 400 <= status < 500
    assert tells_a_problem(status, told, text)


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", "utf8", '"utf-8"', "us-ascii"])
async def test_utf_8_is_read_however_it_is_written(charset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": [(b"Content-Type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr(asgi.http, "application", behind)
    assert (await over_asgi("/api/v1/nodes/n/cordon/", f"application/json; charset={charset}"))[0] == 204


async def test_a_query_that_is_no_text_is_refused() -> None:
    for path in ("/api/v1/events/", "/healthz"):
        status, told, text = await over_asgi(path, method="GET", query=b"kind=\xff")
        assert status == 400
        assert tells_a_problem(status, told, text) or text.startswith("cannot read the address")


# -- when something breaks ---------------------------------------------------------------------------------------------


class Bug(Exception):
    """Its text says more than anybody outside should know."""


def broken(*_: Any, **__: Any) -> Any:
    raise Bug("the secret is CANARY")


@pytest.fixture
def manager() -> Client:
    _, text = create_key(name="manager", may_manage=True)
    return Client(headers={"authorization": f"Bearer {text}"}, raise_request_exception=False)


@pytest.fixture
def staff(admin_user: User) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(admin_user)
    return client


@pytest.mark.django_db
def test_an_error_of_ours_is_a_problem_with_an_id_that_is_in_the_log(
    manager: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fleet.services.catalog.export_catalog", broken)
    answer = manager.get("/api/v1/models/")
    assert (answer.status_code, answer["Content-Type"]) == (500, "application/problem+json")
    told = answer.json()
    assert told["code"] == "internal"
    assert told["detail"].startswith("cannot")
    assert "CANARY" not in answer.content.decode()
    number = told["instance"].removeprefix("urn:uuid:")
    assert number in told["hint"]
    line = next(record for record in caplog.records if number in record.getMessage())
    assert line.levelno == logging.ERROR
    assert line.exc_info is not None
    assert line.exc_info[0] is Bug


@pytest.mark.django_db
def test_an_error_of_ours_on_a_page_is_a_page_with_an_id_that_is_in_the_log(
    staff: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fleet.services.liveness.eviction_held", broken)
    answer = staff.get("/admin/")
    page = answer.content.decode()
    assert (answer.status_code, answer["Content-Type"]) == (500, "text/html; charset=utf-8")
    assert "cannot" in page
    assert "CANARY" not in page
    found = re.search(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", page)
    assert found
    assert [record for record in caplog.records if found.group() in record.getMessage()]


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/api/v1/models/", "/admin/"])
def test_a_database_that_is_away_is_said(manager: Client, staff: Client, path: str, monkeypatch: Any) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise OperationalError("connection to server at CANARY failed")

    monkeypatch.setattr("fleet.services.catalog.export_catalog", away)
    monkeypatch.setattr("fleet.services.liveness.eviction_held", away)
    answer = (manager if "api" in path else staff).get(path)
    assert answer.status_code == 503
    assert "the database is away" in answer.content.decode()
    assert "CANARY" not in answer.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/api", "/api/", "/api/v2/models/", "/nowhere", "/admin/fleet/nowhere/"])
def test_what_is_not_there_is_told(staff: Client, path: str) -> None:
    answer = staff.get(path)
    assert answer.status_code == 404
    tells(answer, path)


REFUSED = [
    (SuspiciousOperation("odd " + "x" * 20_000), 400),
    (PermissionDenied("not for CANARY"), 403),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("error", "status"), REFUSED)
@pytest.mark.parametrize("path", ["/api/v2/", "/admin/"])
def test_what_a_middleware_refuses_is_told(
    staff: Client, path: str, error: Exception, status: int, monkeypatch: Any
) -> None:
    def refuse(*_: Any) -> Any:
        raise error

    monkeypatch.setattr("django.middleware.common.CommonMiddleware.process_request", refuse)
    answer = Client(raise_request_exception=False).get(path)
    assert answer.status_code == status
    tells(answer, path)


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/api/v1/models/", "/admin/login/"])
def test_another_host_is_refused_with_the_name_of_the_setting(path: str) -> None:
    answer = Client(raise_request_exception=False, headers={"host": "else.example"}).get(path)
    assert answer.status_code == 400
    assert "LLMGW_ALLOWED_HOSTS" in answer.content.decode()
    tells(answer, path)


@pytest.mark.django_db
def test_a_form_from_a_page_that_is_too_old_says_so(admin_user: User) -> None:
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    client.force_login(admin_user)
    answer = client.post("/admin/fleet/node/", {"action": "cordon"})
    assert answer.status_code == 403
    tells(answer, "/admin/")
    assert "open it again" in answer.content.decode()


@pytest.mark.django_db
def test_a_form_that_is_too_large_says_so(staff: Client) -> None:
    for fields in ({"profile": "x" * 3_000_000}, {f"f{i}": "x" for i in range(1_200)}):
        answer = staff.generic(
            "POST",
            "/admin/fleet/catalogmodel/add/",
            "&".join(f"{k}={v}" for k, v in fields.items()),
            content_type="application/x-www-form-urlencoded",
        )
        assert answer.status_code in (400, 413)
        tells(answer, "/admin/")


def tells(answer: Any, path: str) -> None:
    text = answer.content.decode()
    assert "CANARY" not in text
    if path.startswith("/api"):
        assert tells_a_problem(answer.status_code, answer["Content-Type"], text)
        assert len(answer.json()["detail"]) < MOST_DETAIL
    else:
        assert answer["Content-Type"] == "text/html; charset=utf-8"
        assert "<h1>cannot" in text
        assert "</html>" in text
        assert len(text) < MOST_DETAIL


def test_what_is_refused_is_one_warning_in_the_log() -> None:
    """Anybody could fill it with tracebacks."""
    record = logging.LogRecord("django.security.DisallowedHost", logging.ERROR, "f", 1, "Invalid %s", ("host",), None)
    record.exc_info = (ValueError, ValueError("x" * 1000), None)
    stderr = settings.LOGGING["handlers"]["stderr"]
    line = settings.LOGGING["formatters"]["line"]["format"]
    assert stderr["filters"] == ["refused"]
    assert Refused().filter(record)
    assert logging.Formatter(line).format(record).endswith(" WARNING django.security.DisallowedHost Invalid host")
    other = logging.LogRecord("fleet", logging.ERROR, "f", 1, "broken", (), None)
    assert Refused().filter(other)
    assert other.levelno == logging.ERROR
