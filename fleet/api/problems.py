"""Errors of the REST API as RFC 9457 problem bodies: `code`, `detail`, `hint`, and `errors` of fields."""

from collections.abc import Iterator
from typing import Any

from django.core.exceptions import BadRequest, RequestDataTooBig, SuspiciousOperation
from django.db import DataError, InterfaceError, OperationalError
from django.http import Http404, JsonResponse
from django.http.multipartparser import MultiPartParserError
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.settings import api_settings
from rest_framework.views import exception_handler

from fleet.services.errors import FleetError

NOT_FOUND = {"model_unknown", "gone"}
CONFLICTS = {"name_taken", "stale_transition"}
KEY_HINT = (
    "send `Authorization: Bearer KEY` with a key that may manage: manage.py router_key NAME --manage makes one; "
    "a password is for the admin alone"
)
#: How a framework's own text begins here, and what to do about it.
BEGINNINGS = {
    "not_authenticated": ("cannot answer: no API key was sent", KEY_HINT),
    "authentication_failed": ("cannot authenticate: ", KEY_HINT),
    "permission_denied": ("cannot do this: ", "ask with a key that may manage, or as a member of the staff"),
    "method_not_allowed": ("cannot do this here: ", "the header Allow names what can be done"),
    "parse_error": ("cannot read the body: ", "send JSON, with Content-Type: application/json"),
    "unsupported_media_type": ("cannot read the body: ", "send JSON, with Content-Type: application/json"),
}
MOST_BYTES_HINT = "2.5 MB are read"
MOST_CHARACTERS = 4_000
KEPT_HEADERS = ("www-authenticate", "retry-after", "allow")


def handle(error: Exception, context: dict[str, Any]) -> JsonResponse | None:
    if isinstance(error, FleetError):
        status = 404 if error.code in NOT_FOUND else 409 if error.code in CONFLICTS else 400
        return problem(status, error.code, error.detail, error.hint)
    if isinstance(error, OperationalError | InterfaceError):
        return problem(503, "database_away", "cannot answer now: the database is away", "try again shortly")
    if isinstance(error, RequestDataTooBig):
        return problem(413, "too_large", "cannot read the body: it is too large", MOST_BYTES_HINT)
    if isinstance(error, SuspiciousOperation | BadRequest | MultiPartParserError):
        return problem(400, "parse_error", f"cannot read what was sent: {error}")
    if isinstance(error, DataError):
        return problem(400, "invalid", "cannot use what was sent: the database takes no such value")
    response = exception_handler(error, context)
    if response is None:
        return None
    if isinstance(error, ValidationError):
        body = _of_fields(error)
    elif isinstance(error, Http404):
        body = problem(404, "not_found", _not_found(context))
    else:
        body = _of_framework(error, response.status_code)
    for name, value in response.items():
        if name.lower() in KEPT_HEADERS:
            body[name] = value
    return body


def problem(status: int, code: str, detail: str, hint: str = "", **more: Any) -> JsonResponse:
    """Not a framework's Response: whatever a view would render, and a client accepts, a problem is this JSON."""
    told = {"detail": _shortened(detail), "hint": _shortened(hint)}
    body = {"type": "about:blank", "status": status, "code": code, **told, **more}
    return JsonResponse(body, status=status, content_type="application/problem+json")


def _shortened(text: str) -> str:
    """A sentence may quote what was sent, and a client may send much."""
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def _of_fields(error: ValidationError) -> JsonResponse:
    errors: dict[str, list[str]] = {}
    for field, text in _leaves(error.detail, ""):
        errors.setdefault(field, []).append(text)
    told = [f"{field}: {' '.join(texts)}" if field else " ".join(texts) for field, texts in errors.items()]
    return problem(400, "invalid", f"cannot use what was sent: {'; '.join(told)}", errors=errors)


def _leaves(detail: Any, field: str) -> Iterator[tuple[str, str]]:
    """Each text with the path of its field; "" where it is about the whole."""
    if isinstance(detail, dict):
        for name, below in detail.items():
            whole = name == api_settings.NON_FIELD_ERRORS_KEY
            yield from _leaves(below, field if whole else f"{field}.{name}".lstrip("."))
    elif isinstance(detail, list | tuple):
        for number, below in enumerate(detail):
            yield from _leaves(below, f"{field}[{number}]" if isinstance(below, dict) and below else field)
    else:
        yield field, str(detail)


def _not_found(context: dict[str, Any]) -> str:
    view = context["view"]
    kind = view.queryset.model._meta.verbose_name if getattr(view, "queryset", None) is not None else "page"
    name = view.kwargs.get(getattr(view, "lookup_field", ""), "")
    return f"cannot find the {kind} {name}: there is none".replace("  ", " ")


def _of_framework(error: Exception, status: int) -> JsonResponse:
    codes = error.get_codes() if isinstance(error, APIException) else "error"
    code = codes if isinstance(codes, str) else "invalid"
    detail = str(error.detail) if isinstance(error, APIException) else str(error)
    beginning, hint = BEGINNINGS.get(code, ("cannot do this: ", ""))
    if detail.startswith("cannot"):
        return problem(status, code, detail, hint)
    return problem(status, code, beginning + detail if beginning.endswith(" ") else beginning, hint)
