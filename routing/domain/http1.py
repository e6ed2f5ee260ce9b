"""The rules of HTTP/1.1 framing that the parser leaves to its user. Whatever could be read in two ways is a fault."""

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

#: What an offer to change the protocol consists of.
_OFFER = (b"upgrade", b"http2-settings", b"connection")
#: Fields of which a second one would change what the first one says.
_SINGLE = (b"host", b"content-length", b"transfer-encoding", b"content-type", b"authorization", b"x-api-key")
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%-]*(\[[0-9A-Fa-f:.]+\])?(:[0-9]{1,5})?")

#: Beyond its data a chunked body may take this many bytes, and as many times its data, for sizes and extensions.
CHUNK_SPARE_BYTES = 64 * 1024
CHUNK_SPARE_TIMES = 8

_LENGTH = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
#: Heads that are remembered: so long at most, and so many.
KNOWN_BYTES, KNOWN_HEADS = 4096, 512

#: Lines in which clients, and proxies before us, tell one request or one client from another: ids, traces, addresses.
#: They change nothing in how a head is judged. Only those written plainly, and on one line.
_OWN = re.compile(
    rb"\r\n((?i:x-(?:request-id|correlation-id|real-ip|amzn-trace-id|cloud-trace-context|b3-(?:trace|span|parentspan)id"
    rb"|forwarded-for|datadog-(?:trace|parent)-id)|trace(?:parent|state)|b(?:aggage|3)|sentry-trace|uber-trace-id"
    rb"|idempotency-key|cf-ray)): ([!-~](?:[ -~]*[!-~])?)(?=\r\n[^ \t]|\Z)"
)

T = TypeVar("T")


def fault(version: str, headers: list[tuple[bytes, bytes]], fields: Mapping[bytes, bytes]) -> str:
    """Why a request head can't be taken, or nothing. `fields` are the headers by lower-case name."""
    if version not in ("1.1", "1.0"):
        return f"HTTP/{version} is not spoken here"
    if len(fields) != len(headers):
        names = [name for name, _ in headers]
        for name in _SINGLE:
            if names.count(name) > 1:
                return f"{name.decode()} stands there twice"
    coding = fields.get(b"transfer-encoding")
    if coding is not None:
        if b"content-length" in fields:
            return "its length is given twice"
        if version == "1.0":
            return "HTTP/1.0 knows no Transfer-Encoding"
        if coding.lower() != b"chunked":
            return "its Transfer-Encoding is not chunked"
    host = fields.get(b"host")
    if host is None:
        return "" if version == "1.0" else "it names no Host"
    return "" if _HOST.fullmatch(host) else "its Host is none"


def origin_form(url: bytes) -> bytes | None:
    """The target as an engine gets it; None for one that names no path (RFC 9112, 3.2)."""
    if url[:7].lower() == b"http://":
        url = b"/" + url[7:].partition(b"/")[2]
    return url if url.startswith(b"/") and b"#" not in url else None


def apart(data: bytes) -> tuple[bytes, int, int] | None:
    """Of bytes that begin with a head: the head without its body's length, that length, and where the body begins.
    None where that is not plain to see.

    Nothing is judged here. But heads that are equal in all but that number are good or bad together, and most heads
    are equal to an earlier one: who keeps what was found out about that one need not look at the next.
    """
    end = data.find(b"\r\n\r\n", 0, KNOWN_BYTES)
    if end < 0:
        return None
    at = data.find(b"ength: ", 0, end) + 7
    if data[at - 18 : at] not in _LENGTH:
        return None
    stop = data.find(b"\r", at)
    digits = data[at:stop]
    if not digits.isdigit() or len(digits) > 9:
        return None
    return data[:at] + data[stop:end], int(digits), end + 4


def without_own(head: bytes) -> tuple[bytes, dict[bytes, bytes]] | None:
    """Of a head as apart() gives it: what it has in common with others of its client's, and the lines that are this
    request's own, by lower-case name. None where there are none, or where it is not plain which of two counts."""
    parts = _OWN.split(head)
    own = dict(zip(map(bytes.lower, parts[1::3]), parts[2::3], strict=True))
    return (b"".join(parts[::3]), own) if 0 < len(own) == len(parts) // 3 else None


def remember(memory: dict[bytes, T], head: bytes, found: T) -> None:
    """Keep it for equal heads; who brings ever new ones makes room by forgetting all."""
    if len(memory) >= KNOWN_HEADS:
        memory.clear()
    memory[head] = found


def overhead_allowed(raw: int, data: int) -> bool:
    """Whether a chunked body of `raw` bytes on the wire carries enough data to be meant seriously."""
    return raw <= CHUNK_SPARE_BYTES + (1 + CHUNK_SPARE_TIMES) * data


def without_offer(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A request head anew, its offer to upgrade left out: a server may ignore one (RFC 9110, 7.8)."""
    lines = [method + b" " + url + b" HTTP/" + version.encode()]
    for name, value in headers:
        if name not in _OFFER:
            lines.append(name + b": " + value)
        elif name == b"connection" and b"close" in tokens(value):
            lines.append(b"connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def tokens(value: bytes) -> list[bytes]:
    """A comma-separated list's members in lower case."""
    return [token.strip() for token in value.lower().split(b",")]
