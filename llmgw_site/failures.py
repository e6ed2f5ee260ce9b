"""What is answered where no view answers: below /api/ a problem (RFC 9457), elsewhere a page.

Neither holds anything of an error of ours but a number, under which the log has the rest. No page here asks the
database: it may be what is missing.
"""

import sys
import uuid
from typing import Any

from django.core.exceptions import DisallowedHost, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from fleet.api.problems import MOST_BYTES_HINT, MOST_CHARACTERS, problem

API = "/api"


def refusal(path: str, status: int, code: str, detail: str, hint: str = "") -> HttpResponse:
    """A problem, or the same in plain text: of a request of which not even a page can be made."""
    if _is_api(path):
        return problem(status, code, detail, hint)
    return HttpResponse(f"{detail}; {hint}\n", status=status, content_type="text/plain; charset=utf-8")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if isinstance(exception, RequestDataTooBig):
        return _answer(request, 413, "too_large", "cannot read what was sent: it is too large", MOST_BYTES_HINT)
    if isinstance(exception, DisallowedHost):
        detail = "cannot answer under this name: it is none of this server's"
        return _answer(request, 400, "unknown_host", detail, "LLMGW_ALLOWED_HOSTS lists the names")
    return _answer(request, 400, "parse_error", f"cannot read what was sent: {exception}")


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _answer(request, 403, "permission_denied", "cannot do this: your user may not", "ask an administrator")


def too_old_a_form(request: HttpRequest, reason: str = "") -> HttpResponse:
    """CSRF_FAILURE_VIEW."""
    detail = "cannot take this form: it is not of a page that this server gave to this browser lately"
    return _answer(request, 403, "csrf", detail, "go back and open it again; cookies must be allowed")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    hint = "/api/v1/ lists what is there" if _is_api(request.path) else ""
    return _answer(request, 404, "not_found", f"cannot find {request.path}: there is no such page", hint)


def server_error(request: HttpRequest) -> HttpResponse:
    if isinstance(sys.exc_info()[1], OperationalError | InterfaceError):
        detail = "cannot answer now: the database is away"
        return _answer(request, 503, "database_away", detail, "try again shortly")
    number = str(uuid.uuid4())
    request.error_number = number  # type: ignore[attr-defined]  # for the log, which comes next
    hint = f"the web process's log tells more under {number}"
    return _answer(request, 500, "internal", "cannot answer: llmgw itself failed", hint, instance=f"urn:uuid:{number}")


def _is_api(path: str) -> bool:
    return path == API or path.startswith(f"{API}/")


def _answer(request: HttpRequest, status: int, code: str, detail: str, hint: str = "", **more: Any) -> HttpResponse:
    if _is_api(request.path):
        return problem(status, code, detail, hint, **more)
    told = {"detail": detail[:MOST_CHARACTERS], "hint": hint}
    return HttpResponse(render_to_string("fleet/failure.html", told), status=status)
