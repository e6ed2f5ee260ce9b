"""What of a request reaches an engine, and what of its answer reaches the client: no connection's own headers, and
none of the client's secrets."""

from routing.dataplane.messages import Headers, Request
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
    b"x-request-id set-cookie access-control-allow-origin access-control-allow-credentials "
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
        body, added = openai.ask_usage(body, request.path, asked)
        if name:
            body = openai.rename(body, name)
    dropped = _without(_TO_ENGINE, request.fields.get(b"connection"))
    lines = [b"%b %b HTTP/1.1\r\nHost: %b" % (request.method.encode(), request.target, endpoint.authority.encode())]
    lines += [b"%b: %b" % header for header in request.headers if header[0] not in dropped]
    if endpoint.key:
        lines.append(b"Authorization: Bearer " + endpoint.key.encode())
    lines.append(b"X-Request-Id: " + request.id.encode("latin-1"))
    given = request.fields.get(b"content-length")
    if request.complete:
        lines.append(b"Content-Length: %d\r\n\r\n" % len(body))
    elif given is not None:  # the name may have changed the length
        lines.append(b"Content-Length: %d\r\n\r\n" % (len(body) + int(given) - request.size))
    else:
        lines.append(b"Transfer-Encoding: chunked\r\n\r\n")
    return b"\r\n".join(lines), body, added


def to_client(headers: Headers, fields: dict[bytes, bytes]) -> Headers:
    dropped = _without(_TO_CLIENT, fields.get(b"connection"))
    return [header for header in headers if header[0] not in dropped]


def _without(names: frozenset[bytes], connection: bytes | None) -> frozenset[bytes]:
    return names if connection is None else names.union(http1.tokens(connection))
