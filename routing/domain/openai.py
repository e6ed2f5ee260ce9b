"""Reads just enough of a request, changes just enough of it, and builds errors in OpenAI's shape."""

from dataclasses import dataclass
from typing import Any

import msgspec

#: Paths whose streams can carry usage when asked.
USAGE_PATHS = ("/v1/chat/completions", "/v1/completions")
_ASK = b',"stream_options":{"include_usage":true}}'


class _Head(msgspec.Struct):
    model: str
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None


_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_decoder = msgspec.json.Decoder(_Head)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    model: str
    stream: bool
    usage: bool  # the client wants usage in the stream


class BadRequest(ValueError):
    """cannot route the request."""


def read(body: bytes) -> Asked:
    """The model and the stream flags of a JSON body; raises BadRequest."""
    try:
        head = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"cannot read the request: {error}") from None
    options = head.stream_options or {}
    return Asked(model=head.model, stream=bool(head.stream), usage=bool(options.get("include_usage")))


def ask_usage(body: bytes, path: str, asked: Asked) -> tuple[bytes, bool]:
    """The body with `stream_options.include_usage` added where the client did not ask; whether it was added."""
    if not asked.stream or asked.usage or path not in USAGE_PATHS:
        return body, False
    if b'"stream_options"' not in body:
        end = body.rstrip()
        return end[:-1] + _ASK, True
    data = msgspec.json.decode(body)
    data["stream_options"] = {**(data.get("stream_options") or {}), "include_usage": True}
    return msgspec.json.encode(data), True


def rename(body: bytes, model: str) -> bytes:
    """The body with another model name; every other value as it was."""
    data = msgspec.json.decode(body)
    data["model"] = model
    return msgspec.json.encode(data)


def error(status: int, message: str, *, kind: str = "", code: str = "") -> bytes:
    """An error body as OpenAI's clients expect it."""
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "invalid_request_error",
        429: "rate_limit_error",
    }
    kind = kind or kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"error": {"message": message, "type": kind, "param": None, "code": code or None}}
    return msgspec.json.encode(body)
