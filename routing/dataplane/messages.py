"""What passes between a client's connection and the router: a request, and an answer made here."""

import uuid
from dataclasses import dataclass, field

from routing.domain import openai

Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True, kw_only=True)
class Request:
    method: str
    path: str
    query: str
    headers: Headers
    body: bytes = b""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    http11: bool = True
    keep_alive: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer that needs no engine."""

    status: int
    body: bytes
    kind: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


def refusal(status: int, text: str, *, retry_after: int = 0, code: str = "") -> Reply:
    headers = ((b"Retry-After", str(retry_after).encode()),) if retry_after else ()
    return Reply(status=status, body=openai.error(status, text, code=code), headers=headers)
