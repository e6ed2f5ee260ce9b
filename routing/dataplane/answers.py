"""Writes one client's answers, one after the other. An exchange speaks to its client through it.

What comes of one read of the engine goes out as one write: a write costs more than all else that a chunk needs.
"""

import asyncio
from collections.abc import Collection
from http import HTTPStatus

from routing.dataplane.messages import Reply, Request
from routing.domain import anthropic

#: A client that takes nothing of its answer for so long keeps an engine's place for nobody.
TAKE_SECONDS = 120.0

_LINES = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Answers:
    __slots__ = ("_chunked", "_cors", "_left", "_parts", "_took_at", "begun", "ended", "held", "request", "transport")

    def __init__(self, cors: Collection[bytes]) -> None:
        """`cors`: the origins whose pages may read answers; `*` for all."""
        self.transport: asyncio.Transport | None = None
        self.request: Request | None = None
        self.begun = self.ended = False  # the head of this request's answer is out; all of it is
        self.held = False  # the client's upload waits
        self._cors = cors
        self._chunked = False
        self._parts: list[bytes] = []  # not yet written
        self._left, self._took_at = 0, 0.0  # what was yet to be taken, when that changed last

    def expect(self, request: Request) -> None:
        self.request = request
        self.begun = self.ended = self.held = False

    def proceed(self) -> None:
        """An interim answer; clients take any number of them before the final one (RFC 9110, 15.2)."""
        if self.transport is not None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def head(self, status: int, given: bytes, length: int | None) -> None:
        """`given`: the lines of all headers that are not this connection's own. `length`: of the body, if known."""
        request = self.request
        if self.transport is None or request is None:
            return
        self.begun, self._chunked = True, False
        lines, line = self._parts, _LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status
        id_ = request.id.encode("latin-1")
        if length is not None:
            lines.append(b"%b%bContent-Length: %d\r\nX-Request-Id: %b\r\n" % (line, given, length, id_))
        else:
            lines.append(b"%b%bX-Request-Id: %b\r\n" % (line, given, id_))
            if not request.head.http11:
                request.keep_alive = False
            elif status not in (204, 304):
                self._chunked = True
                lines.append(b"Transfer-Encoding: chunked\r\n")
        if request.head.anthropic:  # whose clients look for it under this name
            lines.append(b"Request-Id: %b\r\n" % id_)
        if self._cors:
            self._allow(request.head.fields.get(b"origin", b""))
        if not request.keep_alive or not request.complete:  # what is left of its body would not be a request
            lines.append(b"Connection: close\r\n")
        lines.append(b"\r\n")

    def _allow(self, origin: bytes) -> None:
        if origin and (origin in self._cors or b"*" in self._cors):
            self._parts.append(b"Access-Control-Allow-Origin: " + origin + b"\r\nVary: Origin\r\n")
            self._parts.append(b"Access-Control-Expose-Headers: X-Request-Id, Retry-After\r\n")

    def body(self, data: bytes) -> None:
        if data:
            self._parts.append(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        if self._chunked:
            self._parts.append(b"0\r\n\r\n")
        self._chunked = False
        self.flush()
        self.ended = True

    def flush(self) -> None:
        """Write what has gathered."""
        if self._parts and self.transport is not None:
            self.transport.write(b"".join(self._parts))
        self._parts.clear()

    def cut(self) -> None:
        """The answer can't be completed: the connection's end says so."""
        self.flush()
        if self.transport is not None:
            self.transport.close()

    def stalled(self, now: float) -> bool:
        """Whether the client has taken nothing of what waits for it, for too long."""
        left = self.transport.get_write_buffer_size() if self.transport is not None else 0
        if left != self._left:
            self._left, self._took_at = left, now
        return left > 0 and now - self._took_at > TAKE_SECONDS

    def hold(self, yes: bool) -> None:
        """Whether the client's upload waits, because the engine does not take it so fast."""
        if self.transport is not None and not self.transport.is_closing():
            self.held = yes
            self.transport.pause_reading() if yes else self.transport.resume_reading()

    def whole(self, reply: Reply) -> int:
        """Write it all; the status."""
        body = reply.body
        if reply.text and self.request is not None and self.request.head.anthropic:
            body = anthropic.error(reply.status, reply.text)
        lines = b"".join([b"%b: %b\r\n" % header for header in reply.headers])
        if reply.status != 204:
            lines += b"Content-Type: %b\r\n" % reply.kind
        self.head(reply.status, lines, None if reply.status == 204 else len(body))
        if self.request is not None and self.request.head.method != "HEAD":
            self.body(body)
        self.end()
        return reply.status
