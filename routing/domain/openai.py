"""Reads just enough of a request, changes just enough of it, and builds errors in OpenAI's shape."""

import re

import msgspec

#: Paths whose streams can carry usage when asked.
USAGE_PATHS = ("/v1/chat/completions", "/v1/completions")
_ASK = b',"stream_options":{"include_usage":true}'
_ASK_MORE = b'"include_usage":true'

Body = bytes | bytearray


class _Head(msgspec.Struct):
    model: str
    stream: bool | None = None
    stream_options: msgspec.Raw = msgspec.Raw()


_head = msgspec.json.Decoder(_Head)
_KEY = re.compile(rb'[ \t\r\n]*,?[ \t\r\n]*("(?:[^"\\]|\\.)*")[ \t\r\n]*:[ \t\r\n]*')
_MODEL = re.compile(rb'"model"[ \t\r\n]*:[ \t\r\n]*')
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
#: Up to here looking for a second `"model"` is faster than going from member to member (measured: 0.8 us a KB, 6 us).
_SMALL_BYTES = 8 * 1024
#: An object has no more names than this, and no longer ones: real ones have some dozens. Each costs microseconds, for
#: which all other requests wait.
MOST_NAMES, NAME_LETTERS = 1000, 1000
_TWICE = "cannot read the request: a name stands in it twice"
#: What a flag may be that is looked at: a longer value is a wrong one, which the engine refuses.
_FLAG_BYTES = 64

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class Asked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    model: str
    stream: bool
    usage: bool  # the client wants usage in the stream
    options: bool = False  # there are stream options


class BadRequest(ValueError):
    """cannot route the request."""


def read(body: Body) -> Asked:
    """The model and the stream flags of a JSON body; raises BadRequest. A body that was read can be changed, too."""
    try:
        head = _head.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"cannot read the request: {_why(body, error)}") from None
    options = bytes(head.stream_options)
    usage = bool(options) and options != b"null" and _wants(options, members(options).get("include_usage"))
    if (options and not usage) or not _plain(body):
        members(body)
    return Asked(model=head.model, stream=bool(head.stream), usage=usage, options=bool(options))


def _why(body: Body, error: Exception) -> str:
    """What the decoder leaves to be guessed, in words."""
    text = str(error)
    if not body.strip():
        return "it has no body; send JSON that names a model"
    if (body[0] < 0x20 and body[:1] not in b"\t\r\n") or body[0] >= 0x80:
        return "its body is no text; send JSON as it is, neither compressed nor with another Content-Encoding"
    if "required field" in text:
        return "it names no model; send JSON with `model`"
    if ("truncated" in text and body.rstrip()[-1:] == b"}") or "surrogate" in text or "hex escape" in text:
        return "a text in it holds half of a surrogate pair (\\ud800 to \\udfff), or does not end"
    return "its JSON ends too early" if "truncated" in text else text


def _plain(body: Body) -> bool:
    """Whether no name that is read here can stand in the body twice: seen without looking at each."""
    # An escape may hide a letter of a second name; they all begin with 00.
    if len(body) > _SMALL_BYTES or b"\\u00" in body or body.count(b'"model"') != 1:
        return False
    return body.count(b'"stream') <= 1 or (body.count(b'"stream"') <= 1 and body.count(b'"stream_options"') <= 1)


def _wants(options: bytes, span: tuple[int, int] | None) -> bool:
    if span is None:
        return False
    start, end = span
    try:
        return end - start > _FLAG_BYTES or bool(msgspec.json.decode(options[start:end]))
    except msgspec.DecodeError:
        return True


class _Name(str):
    """A name of an object. The decoder asks for each how it is made, and so each is counted."""

    __slots__ = ()


class _TooMuch(Exception):
    """cannot read the request."""


class _Names:
    """Counts the names of one object, and ends its decoding early: a dict has one for two that are equal."""

    count = 0

    def __call__(self, kind: type, name: str) -> _Name:
        self.count += 1
        if self.count > MOST_NAMES:
            raise _TooMuch(f"an object in it has more than {MOST_NAMES} names")
        if len(name) > NAME_LETTERS:
            raise _TooMuch(f"a name in it has more than {NAME_LETTERS} letters")
        return _Name(name)


_names = _Names()  # one for all: making a decoder takes longer than its work
_members = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=_names)


def members(body: Body) -> dict[str, tuple[int, int]]:
    """Where each value of a JSON object stands. Raises BadRequest when a name stands there twice."""
    _names.count = 0
    try:
        values = _members.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, _TooMuch) as error:
        raise BadRequest(f"cannot read the request: {_why(body, error)}") from None
    if len(values) != _names.count:
        raise BadRequest(_TWICE)
    spans: dict[str, tuple[int, int]] = {}
    at = body.index(b"{") + 1
    for name, value in values.items():
        start = _KEY.match(body, at).end()  # type: ignore[union-attr]  # it was decoded
        at = start + len(memoryview(value))
        spans[name] = (start, at)
    return spans


def ask_usage(body: Body, path: str, asked: Asked) -> tuple[Body, bool]:
    """The body with `stream_options.include_usage` added where the client did not ask; whether it was added."""
    if not asked.stream or asked.usage or path not in USAGE_PATHS:
        return body, False
    if not asked.options:
        end = body.rindex(b"}")
        return spliced(body, end, end, _ASK), True
    start, end = members(body)["stream_options"]
    options = bytes(body[start:end])
    if options == b"null":
        return spliced(body, start, end, b"{%b}" % _ASK_MORE), True
    inner = members(options)
    if "include_usage" in inner:
        first, last = inner["include_usage"]
        return spliced(body, start + first, start + last, b"true"), True
    return spliced(body, end - 1, end - 1, (b"," if inner else b"") + _ASK_MORE), True


def rename(body: Body, model: str) -> Body:
    """The body with another model name; every other byte as it was."""
    start, end = _model_in(body)
    return spliced(body, start, end, msgspec.json.encode(model))


def _model_in(body: Body) -> tuple[int, int]:
    if not _plain(body):
        return members(body)["model"]
    start = _MODEL.search(body).end()  # type: ignore[union-attr]  # it was read, and stands there once
    return start, _STRING.match(body, start).end()  # type: ignore[union-attr]


def spliced(body: Body, start: int, end: int, new: bytes) -> Body:
    """The body with other bytes from `start` to `end`."""
    return b"".join((memoryview(body)[:start], new, memoryview(body)[end:]))


def error(status: int, message: str, *, kind: str = "", code: str = "") -> bytes:
    """An error body as OpenAI's clients expect it."""
    kind = kind or _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code or None}})
