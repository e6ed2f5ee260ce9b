"""What passes between a client's connection and the router: a request, and an answer made here."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import getrandbits

from routing.domain import openai
from routing.domain.form import Form
from routing.keys import Key

#: Names in lower case, in the order they came.
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer that needs no engine."""

    status: int
    body: bytes = b""
    kind: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    text: str = ""  # what is wrong, for those who want it in another shape than OpenAI's


@dataclass(slots=True, kw_only=True)
class Request:
    """A request from its head on; its body comes later."""

    method: str
    path: str
    target: bytes  # path and query as the client wrote them
    headers: Headers = field(default_factory=list)
    fields: Mapping[bytes, bytes] = field(default_factory=dict)  # the same by name
    http11: bool = True
    keep_alive: bool = True
    id: str = field(default_factory=lambda: f"{getrandbits(128):032x}")
    began: float = field(default_factory=time.monotonic)
    key: Key | None = None
    reply: Reply | None = None  # what it gets whatever its body says
    body: bytes | bytearray = b""
    size: int = 0  # of the body so far, what was passed on already included
    complete: bool = False
    expects: bool = False  # to be told to send its body
    form: Form | None = None  # a body that is passed on while it comes

    @property
    def ready(self) -> bool:
        """Whether an engine can be chosen."""
        return self.complete or (self.form is not None and self.form.model is not None)

    def take(self, data: bytes) -> None:
        """One more piece of the body; raises BadRequest when it is a form that can't be read."""
        self.size += len(data)
        if not self.body:
            self.body = data
        elif isinstance(self.body, bytearray):
            self.body += data
        else:  # most bodies come in one piece
            self.body = bytearray(self.body)
            self.body += data
        if self.form is not None:
            self.form.feed(data)


def refusal(
    status: int, text: str, *, retry_after: int = 0, code: str = "", headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Reply:
    if retry_after:
        headers = (*headers, (b"Retry-After", str(retry_after).encode()))
    return Reply(status=status, body=openai.error(status, text, code=code), headers=headers, text=text)
