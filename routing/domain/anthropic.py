"""What Anthropic's clients read that OpenAI's don't: errors, and the list of models."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

PATH = "/v1/messages"
#: Their clients name the API's version in each request, whatever its path.
VERSION = b"anthropic-version"
#: Of a model whose day is not known they say the epoch.
_UNKNOWN_DAY = "1970-01-01T00:00:00Z"
MOST_ROWS = 1000

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class BadPage(ValueError):
    """cannot list models."""


def spoken(path: str, fields: Mapping[bytes, bytes]) -> bool:
    """Whether who asks reads Anthropic's shapes."""
    return VERSION in fields or path == PATH or path.startswith(f"{PATH}/")


def error(status: int, message: str) -> bytes:
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


def model(name: str) -> dict[str, Any]:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": _UNKNOWN_DAY,
        "lifecycle": "active",
    }


def page(names: Sequence[str], asked: Mapping[str, str]) -> dict[str, Any]:
    """The models from `after_id` or up to `before_id`, at most `limit` of them; raises BadPage."""
    limit = asked.get("limit", str(MOST_ROWS))
    if not limit.isdecimal() or not 1 <= int(limit) <= MOST_ROWS:
        raise BadPage(f"cannot list models: limit is {limit[:20]!r}; give a number from 1 to {MOST_ROWS}")
    backwards = "before_id" in asked
    for name in ("after_id", "before_id"):
        if name in asked and asked[name] not in names:
            raise BadPage(f"cannot list models: there is none of the {name} {asked[name][:127]!r}")
    first = names.index(asked["after_id"]) + 1 if "after_id" in asked else 0
    last = names.index(asked["before_id"]) if backwards else len(names)
    rows = names[first:last]
    some = rows[-int(limit) :] if backwards else rows[: int(limit)]
    return {
        "data": [model(name) for name in some],
        "has_more": len(some) < len(rows),
        "first_id": some[0] if some else None,
        "last_id": some[-1] if some else None,
    }
