"""Errors of the REST API as RFC 9457 problem bodies with `code`, `detail` and `hint`."""

from typing import Any

from django.db import InterfaceError, OperationalError
from rest_framework.exceptions import APIException
from rest_framework.response import Response
from rest_framework.views import exception_handler

from fleet.services.errors import FleetError

NOT_FOUND = {"model_unknown"}


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    if isinstance(error, FleetError):
        status = 404 if error.code in NOT_FOUND else 409 if error.code in ("name_taken", "stale_transition") else 400
        return problem(status, error.code, error.detail, error.hint)
    if isinstance(error, OperationalError | InterfaceError):
        return problem(503, "database_away", "cannot answer now: the database is away", "try again shortly")
    if isinstance(error, RecursionError):
        return problem(400, "parse_error", "cannot read the body: it is nested too deep")
    response = exception_handler(error, context)
    if response is None:
        return None
    code = error.get_codes() if isinstance(error, APIException) else "error"
    detail = error.detail if isinstance(error, APIException) else str(error)
    body = problem(
        response.status_code,
        code if isinstance(code, str) else "invalid",
        detail if isinstance(detail, str) else str(detail),
    )
    for name, value in response.items():
        if name.lower() in ("www-authenticate", "retry-after", "allow"):
            body[name] = value
    return body


def problem(status: int, code: str, detail: str, hint: str = "") -> Response:
    body = {"type": "about:blank", "status": status, "code": code, "detail": detail, "hint": hint}
    return Response(body, status=status, content_type="application/problem+json")
