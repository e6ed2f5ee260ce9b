"""What a client sends, made into requests, judged by their heads. Mixed into the connection, which answers them."""

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING

import httptools

from routing.dataplane.exchange import Proxied
from routing.dataplane.messages import Head, Request, refusal
from routing.domain import http1
from routing.domain.form import form_of
from routing.domain.openai import BadRequest

if TYPE_CHECKING:
    from routing.dataplane.router import Router

log = logging.getLogger("routing")

HEAD_BYTES = 32 * 1024
#: After a body's last byte, and between two of its pieces: sizes, extensions, trailers.
BETWEEN_BYTES = 64 * 1024
_LONG_HEAD = f"cannot take a request head over {HEAD_BYTES} bytes"
_LONG_BODY = "cannot take a body over {} bytes"
BROKEN = "cannot serve the request: an error inside the router"


class Incoming(asyncio.Protocol):
    """A class of its own, but no object: another one to ask would cost each request some calls."""

    def __init__(self, router: "Router") -> None:
        self._router = router
        self.loop = router.loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._requests: list[Request] = []  # whose heads are here; the first is being answered
        self._exchange: Proxied | None = None  # of the first
        self._deaf = False  # what comes is dropped: it can't be understood, or nobody waits for it
        self._heard_at = self._head_at = 0.0
        self._missing = 0  # of the last request's body, which is only counted
        self._fresh()

    def _refuse(self, status: int, text: str) -> None:
        raise NotImplementedError

    def _fresh(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._raw = 0  # what came since the request before
        self._dry = 0  # what came since the body's last byte
        self._between, self._in_head = True, False  # no byte of a next request has come
        self._offered = False
        self._apart: bytes | None = None  # the head as it will be known again: see http1.apart
        self._own: dict[bytes, bytes] | None = None  # what of it is this request's own: see http1.without_own

    # -- requests whose head is known ---------------------------------------------------------------------------------

    def _known(self, data: bytes) -> bool:
        """Take a request whose head was judged before; False for any other."""
        found = http1.apart(data)
        if found is None or self._deaf:
            return False
        name, length, start = found
        head, own = self._router.heads.get(name), None
        if head is None and (split := http1.without_own(name)) is not None:
            name, own = split
            head = self._router.heads.get(name)
        size = len(data) - start
        if head is None or size > length or length > self._router.body_bytes or not self._router.admitted(head):
            self._apart, self._own = name, own
            return False
        request = Request(head, time.monotonic(), own)
        request.size = size
        request.body = data[start:]
        self._missing = length - size
        request.complete = size == length
        self._requests.append(request)
        return True

    def _take(self, data: bytes) -> bytes:
        """More of its body; what is left of the bytes."""
        request = self._requests[-1]
        left = data[self._missing :]
        if left:
            data = data[: self._missing]
        self._missing -= len(data)
        request.take(data)
        request.complete = not self._missing
        return left

    # -- all others: httptools ----------------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        while data and not self._deaf and self._transport is not None and not self._transport.is_closing():
            self._raw += len(data)
            self._dry += len(data)
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as offer:
                data = self._without_offer() + data[offer.args[0] :]
            except httptools.HttpParserCallbackError as error:
                log.error(json.dumps({"event": "broken", "what": "head or body"}), exc_info=error)
                return self._refuse(500, BROKEN)
            except httptools.HttpParserError as error:
                return self._refuse(400, f"cannot read the request: {error}")
        if self._in_head and self._raw > HEAD_BYTES:
            self._refuse(431, _LONG_HEAD)
        elif self._requests and not self._requests[-1].complete:
            self._check_overhead(self._requests[-1])

    def _without_offer(self) -> bytes:
        """The head just read, without its offer to upgrade, for a new parser: the old one would take no body."""
        head = http1.without_offer(self._parser.get_method(), self._url, self._parser.get_http_version(), self._headers)
        self._parser = httptools.HttpRequestParser(self)
        self._fresh()
        return head

    def _check_overhead(self, request: Request) -> None:
        if self._dry > BETWEEN_BYTES or not http1.overhead_allowed(self._raw, request.size):
            self._refuse(400, "cannot read the request: its chunks are mostly overhead")

    # -- httptools ----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._between, self._in_head = False, True
        self._head_at = self._heard_at

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else a chunked body's trailer, which nobody asked for
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._offered, self._in_head = self._parser.should_upgrade(), False
        if self._deaf or self._offered:
            if self._parser.get_method() == b"CONNECT":
                self._refuse(405, "cannot CONNECT: this is no proxy")
            return
        headers, version = self._headers, self._parser.get_http_version()
        if len(self._url) + sum([len(name) + len(value) for name, value in headers]) > HEAD_BYTES:
            return self._refuse(431, _LONG_HEAD)
        fields = dict(headers)
        target = http1.origin_form(self._url)
        wrong = http1.fault(version, headers, fields)
        if wrong or target is None:
            return self._refuse(400, f"cannot read the request: {wrong or 'its target is no path'}")
        head = Head.read(self._parser.get_method(), target, headers, fields, http11=version == "1.1")
        request = Request(head, time.monotonic())
        request.reply = self._router.admit(request)
        if request.reply is None:
            self._await_body(request)
        self._requests.append(request)

    def _await_body(self, request: Request) -> None:
        fields = request.head.fields
        if int(fields.get(b"content-length", 0)) > self._router.body_bytes:
            request.reply = refusal(413, _LONG_BODY.format(self._router.body_bytes))
        elif (expected := fields.get(b"expect")) is not None and request.head.http11:
            request.expects = expected.lower() == b"100-continue"
            if not request.expects:
                request.reply = refusal(417, "cannot meet the expectation: only 100-continue is known")
        try:
            request.form = form_of(fields.get(b"content-type", b""))
        except BadRequest as error:
            request.reply = refusal(400, str(error))

    def on_body(self, data: bytes) -> None:
        self._dry = 0
        if self._deaf or not self._requests:
            return
        request = self._requests[-1]
        if request.reply is not None:
            return
        if request.size + len(data) > self._router.body_bytes:
            return self._refuse(413, _LONG_BODY.format(self._router.body_bytes))
        try:
            request.take(data)
        except BadRequest as error:
            return self._refuse(400, str(error))
        if self._exchange and request is self._requests[0]:
            self._exchange.more()

    def on_message_complete(self) -> None:
        if self._deaf or self._offered or not self._requests:
            return
        request = self._requests[-1]
        request.keep_alive = self._parser.should_keep_alive()  # only here does it tell the truth
        request.complete = True
        if self._apart is not None and request.plain:
            head = request.head if self._own is None else request.head.without(self._own)
            if head is not None:
                http1.remember(self._router.heads, self._apart, head)
        self._fresh()
        if self._exchange and request is self._requests[0]:
            self._exchange.more()
