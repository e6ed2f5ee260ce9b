"""What of a request reaches an engine, and what of its answer reaches the client: no connection's own headers, and
none of the client's secrets."""

from dataclasses import dataclass

from routing.dataplane.messages import Head, Headers, Request
from routing.domain import http1, openai
from routing.table import Endpoint

#: Said from one connection's end to the other's (RFC 9110, 7.6.1).
_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer transfer-encoding "
    b"upgrade http2-settings".split()
)
#: Replaced, or the client's secrets.
_TO_ENGINE = _HOP.union(
    b"host content-length expect accept-encoding x-request-id authorization x-api-key cookie".split()
)
#: Replaced, or the engine's own business.
_TO_CLIENT = _HOP.union(
    b"content-length x-request-id request-id set-cookie access-control-allow-origin access-control-allow-credentials "
    b"access-control-expose-headers".split()
)


def to_engine(request: Request, asked: openai.Asked, endpoint: Endpoint) -> tuple[bytes, bytes | bytearray, bool]:
    """Head and body, or of a body that is still on its way the beginning; whether usage was asked for on our own."""
    body, added = request.body, False
    name = endpoint.model if endpoint.model != asked.model else None
    if request.form is not None:
        if name:
            body = openai.spliced(body, *request.form.span, name.encode())
    else:
        if name:
            body = openai.rename(body, name)
        body, added = openai.ask_usage(body, request.head.path, asked)
    lines = _lines_to_engine(request.head, endpoint)
    if request.own is not None:
        lines += b"".join([b"%b: %b\r\n" % field for field in request.own.items() if field[0] not in _TO_ENGINE])
    id_ = request.id.encode("latin-1")
    given = request.head.fields.get(b"content-length")
    if request.complete:
        return b"%bX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n" % (lines, id_, len(body)), body, added
    if given is not None:  # the name may have changed the length
        length = len(body) + int(given) - request.size
        return b"%bX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n" % (lines, id_, length), body, added
    return b"%bX-Request-Id: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % (lines, id_), body, added


def _lines_to_engine(head: Head, endpoint: Endpoint) -> bytes:
    """All lines but those that tell one request from the next with the same head."""
    made = head.to_engine
    if made is not None and made[0] is endpoint:
        return made[1]
    dropped = _without(_TO_ENGINE, head.fields.get(b"connection"))
    lines = [b"%b %b HTTP/1.1\r\nHost: %b" % (head.method.encode(), head.target, endpoint.authority.encode())]
    lines += [b"%b: %b" % header for header in head.headers if header[0] not in dropped]
    if endpoint.key:
        lines.append(b"Authorization: Bearer " + endpoint.key.encode())
    text = b"\r\n".join(lines) + b"\r\n"
    head.to_engine = endpoint, text
    return text


@dataclass(slots=True, eq=False)
class AnswerHead:
    """An engine's, as its client gets it. Answers whose heads are equal but for the body's length share one."""

    status: int
    lines: bytes  # without the length
    streams: bool  # server-sent events follow


def to_client(status: int, headers: Headers, fields: dict[bytes, bytes]) -> AnswerHead:
    dropped = _without(_TO_CLIENT, fields.get(b"connection"))
    return AnswerHead(
        status,
        b"".join([b"%b: %b\r\n" % header for header in headers if header[0] not in dropped]),
        fields.get(b"content-type", b"").startswith(b"text/event-stream"),
    )


def _without(names: frozenset[bytes], connection: bytes | None) -> frozenset[bytes]:
    return names if connection is None else names.union(http1.tokens(connection))
