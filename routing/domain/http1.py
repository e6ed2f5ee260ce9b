"""The rules of HTTP/1.1 framing that the parser leaves to its user."""

from collections.abc import Iterable

#: What an offer to change the protocol consists of.
_OFFER = (b"upgrade", b"http2-settings", b"connection")


def without_offer(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A request head anew, its offer to upgrade left out: a server may ignore one (RFC 9110, 7.8)."""
    lines = [method + b" " + url + b" HTTP/" + version.encode()]
    for name, value in headers:
        lower = name.lower()
        if lower not in _OFFER:
            lines.append(name + b": " + value)
        elif lower == b"connection" and b"close" in _tokens(value):
            lines.append(b"Connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _tokens(value: bytes) -> list[bytes]:
    return [token.strip() for token in value.lower().split(b",")]
