"""What passes between a client's connection and the router: a request, and an answer made here."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import count
from random import getrandbits

from routing.dataplane.gate import Gate
from routing.dataplane.meters import Meter
from routing.domain import anthropic, openai
from routing.domain.form import Form
from routing.keys import Key
from routing.table import Endpoint, RoutingTable

_PROCESS = f"{getrandbits(64):016x}"
_next_number = count(1).__next__

#: The largest body that is taken, unless the router is told otherwise: images in base64 are large.
BODY_BYTES = 64 * 1024 * 1024
#: A client's own request id is taken up to this length.
ID_BYTES = 128

#: Of a name that a client gave so much stands in answers and logs.
NAME_LETTERS = 200

#: Names in lower case, in the order they came.
Headers = list[tuple[bytes, bytes]]


def serial() -> str:
    """32 hex digits that no other request has: the first half is this process's own."""
    return f"{_PROCESS}{_next_number():016x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer that needs no engine."""

    status: int
    body: bytes = b""
    kind: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    text: str = ""  # what is wrong, for those who want it in another shape than OpenAI's


@dataclass(slots=True, eq=False)
class Head:
    """A request's head, read and judged. Requests whose heads are equal but for the body's length, and for the lines of
    http1.without_own, share one."""

    method: str
    path: str
    target: bytes  # path and query as the client wrote them
    headers: Headers
    fields: Mapping[bytes, bytes]  # the same by name
    http11: bool
    anthropic: bool = False  # its client reads Anthropic's shapes
    given_id: str = ""  # the client's own
    key: Key | None = None
    table: RoutingTable | None = None  # by which the key was judged
    to_engine: tuple[Endpoint, bytes] | None = None  # as the endpoint gets it that got the last one

    @classmethod
    def read(
        cls, method: bytes, target: bytes, headers: Headers, fields: Mapping[bytes, bytes], *, http11: bool
    ) -> "Head":
        """Of what the parser found, which was checked. An id of the client's that is too long is none."""
        given = fields.get(b"x-request-id", b"")
        path = target.partition(b"?")[0].decode("ascii")
        return cls(
            method.decode(),
            path,
            target,
            headers,
            fields,
            http11,
            anthropic.spoken(path, fields),
            _id(given),
        )

    def without(self, names: Collection[bytes]) -> "Head | None":
        """What it has in common with heads that differ in these fields alone; None where one stands there twice."""
        headers = [header for header in self.headers if header[0] not in names]
        if len(headers) + len(names) != len(self.headers):
            return None
        return replace(self, headers=headers, fields=dict(headers), given_id="", to_engine=None)


def _id(given: bytes) -> str:
    return given.decode("latin-1") if len(given) <= ID_BYTES else ""


class Request:
    """A request from its head on; its body comes later."""

    reply: Reply | None = None  # what it gets whatever its body says
    keep_alive = True
    body: bytes | bytearray = b""
    size = 0  # of the body so far, what was passed on already included
    complete = False
    expects = False  # to be told to send its body
    form: Form | None = None  # a body that is passed on while it comes
    meter: Meter | None = None  # what it is charged to
    gate: Gate | None = None  # where it has a place
    over = False  # it is in the books
    own: Mapping[bytes, bytes] | None = None  # fields that stand in its head beside those it shares with others

    def __init__(self, head: Head, began: float, own: Mapping[bytes, bytes] | None = None) -> None:
        """`began`: time.monotonic()."""
        self.head = head
        self.began = began
        self.key = head.key
        self.serial = serial()
        if own is None:
            self.id = head.given_id or self.serial
        else:
            self.own = own
            self.id = _id(own.get(b"x-request-id", b"")) or self.serial

    def field(self, name: bytes) -> bytes | None:
        """What its head says under this lower-case name."""
        own = self.own.get(name) if self.own is not None else None
        return self.head.fields.get(name) if own is None else own

    @classmethod
    def unread(cls, began: float) -> "Request":
        """What came can't be told from anything: it stands for the last answer of its connection."""
        request = cls(Head("", "", b"", [], {}, True), began)
        request.keep_alive = False
        return request

    @property
    def plain(self) -> bool:
        """Whether all that its head says is said by an equal head, too: its body ends where the length says."""
        fields = self.head.fields
        return (
            self.reply is None
            and self.keep_alive
            and self.form is None
            and self.head.http11
            and b"content-length" in fields
            and b"expect" not in fields
            and b"upgrade" not in fields
            and fields.get(b"connection", b"keep-alive").lower() == b"keep-alive"
        )

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


def clipped(name: str) -> str:
    """A client's own word as it is said again."""
    return name if len(name) <= NAME_LETTERS else f"{name[:NAME_LETTERS]}…"


def refusal(
    status: int, text: str, *, retry_after: int = 0, code: str = "", headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Reply:
    if retry_after:
        headers = (*headers, (b"Retry-After", str(retry_after).encode()))
    return Reply(status=status, body=openai.error(status, text, code=code), headers=headers, text=text)
