"""What paths there are, who asks, and what a browser is told about both. All of it stands in a request's head."""

import re
from collections.abc import Collection
from functools import lru_cache

from routing.dataplane.messages import Reply, Request

_READ = ("GET", "HEAD")
_POST = ("POST",)
#: Paths of engines whose request names a model. Only plain names: no engine shall read another path than was read here.
_API = re.compile(r"/v[12](/[a-z][a-z0-9_-]*)+")
_UNVERSIONED = frozenset(
    f"/{name}" for name in ("rerank", "score", "tokenize", "detokenize", "pooling", "classify", "embed")
)
#: They carry a model, and change the engine.
_PRIVATE = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
#: A longer one is none of them: it is kept with each row of usage.
PATH_LETTERS = 100
_OWN = frozenset({"/healthz", "/readyz", "/metrics"})

_CORS_HEADERS = b"Authorization, Content-Type, X-API-Key, X-Request-Id"


@lru_cache(maxsize=512)
def methods(path: str) -> tuple[str, ...]:
    """What may be done with a path; nothing for one that is none of the API's."""
    if path == "/v1/models" or path.startswith("/v1/models/") or path in _OWN:
        return _READ
    if len(path) > PATH_LETTERS:
        return ()
    if path in _UNVERSIONED or (_API.fullmatch(path) is not None and path not in _PRIVATE):
        return _POST
    return ()


def options(request: Request, cors: Collection[bytes]) -> Reply:
    """No key is asked: a browser sends none with its preflight."""
    allowed = ", ".join((*(methods(request.head.path) or _READ), "OPTIONS")).encode()
    headers: tuple[tuple[bytes, bytes], ...] = ((b"Allow", allowed),)
    if cors and b"access-control-request-method" in request.head.fields:
        wanted = request.head.fields.get(b"access-control-request-headers", _CORS_HEADERS)
        headers += (
            (b"Access-Control-Allow-Methods", allowed),
            (b"Access-Control-Allow-Headers", wanted),
            (b"Access-Control-Max-Age", b"600"),
        )
    return Reply(status=204, headers=headers)


def given_key(request: Request) -> str | None:
    """The client's key: OpenAI's clients call it a bearer, Anthropic's `x-api-key`."""
    value = request.head.fields.get(b"authorization", b"")
    if value[:7].lower() == b"bearer ":
        return value[7:].strip().decode("latin-1")
    value = request.head.fields.get(b"x-api-key", b"")
    return value.strip().decode("latin-1") or None
