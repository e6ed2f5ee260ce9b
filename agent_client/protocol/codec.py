"""JSON text ↔ message. Unknown fields pass, unknown types and wrong values are told apart from broken frames.

One frame holds one JSON object: `type`, `seq` and the message's own fields beside them.
"""

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from agent_client.plain_data import MAX_INTEGER
from agent_client.protocol.messages import BY_TYPE, MAX_FRAME_BYTES, Message


class FrameError(ValueError):
    """cannot read the frame: it is no message at all, so the stream closes."""

    def __init__(self, detail: str, *, too_big: bool = False) -> None:
        super().__init__(detail)
        self.too_big = too_big


class MessageError(ValueError):
    """cannot use the message: its type is unknown or a field is wrong; the stream goes on."""

    def __init__(self, code: str, detail: str, *, about: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.about = about


def encode(message: Message, *, seq: int) -> str:
    """The frame of a message; raises FrameError when it would be over 1 MiB."""
    text = json.dumps({"type": message.TYPE, "seq": seq, **_plain(message)}, separators=(",", ":"), allow_nan=False)
    if len(text) > MAX_FRAME_BYTES:  # json.dumps escapes to ASCII: characters are bytes
        raise FrameError(f"cannot send {message.TYPE}: {len(text)} bytes, at most {MAX_FRAME_BYTES} fit", too_big=True)
    return text


def decode(text: str | bytes, *, accept: tuple[type, ...]) -> tuple[Message, int]:
    """Message and sequence number of a frame; `accept` lists the types that may come from the other side."""
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_FRAME_BYTES:
        raise FrameError(f"cannot take a frame of {size} bytes: at most {MAX_FRAME_BYTES} are allowed", too_big=True)
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"cannot read the frame as JSON: {error}") from None
    if not isinstance(data, dict):
        raise FrameError(f"cannot read the frame: a JSON object is needed, not {type(data).__name__}")
    name = data.get("type")
    if not isinstance(name, str):
        raise FrameError("cannot read the frame: it has no `type`")
    kind = BY_TYPE.get(name)
    if kind is None:
        raise MessageError(
            "unknown_type", f"cannot handle message type {name[:60]!r}: it is not known here", about=name[:60]
        )
    if kind not in accept:
        raise MessageError("wrong_direction", f"cannot handle {name!r}: it is not sent in this direction", about=name)
    seq = data.get("seq")
    if not isinstance(seq, int) or isinstance(seq, bool) or not 0 < seq <= MAX_INTEGER:
        raise MessageError("bad_field", f"cannot use {name!r}: `seq` must be a positive integer", about=name)
    return _reader(kind)(data, name), seq


def read_part(kind: type[Any], data: Any) -> Any:
    """One dataclass part (a ShardSpec from a stored order, say) from plain JSON data; raises MessageError."""
    return _reader(kind)(data, kind.__name__)


def plain_part(part: Any) -> dict[str, Any]:
    """Plain JSON data of one dataclass part; the counterpart of read_part."""
    return _plain(part)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number here")


# --- reading: one reader per type, built once from the annotations ---------------------------------------------------

Reader = Callable[[Any, str], Any]
#: Half of a surrogate pair: JSON can say it, UTF-8 can't.
_HALF = re.compile("[\ud800-\udfff]")
_READERS: dict[Any, Reader] = {}


def _reader(hint: Any) -> Reader:
    if hint not in _READERS:
        _READERS[hint] = _build(hint)
    return _READERS[hint]


def _build(hint: Any) -> Reader:
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if hint is Any:
        return lambda value, where: _storable(value)
    if origin in (typing.Union, types.UnionType):
        return _build_optional(args)
    if origin is tuple:
        item = _reader(args[0])
        return lambda value, where: tuple(item(v, f"{where}[{i}]") for i, v in enumerate(_list(value, where)))
    if origin is not None and issubclass(origin, Mapping):
        item = _reader(args[1])
        return lambda value, where: {_storable(k): item(v, f"{where}.{k}") for k, v in _object(value, where).items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build_dataclass(hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return lambda value, where: _enum(hint, value, where)
    if hint in _SCALARS:
        return _SCALARS[hint]
    raise TypeError(f"no reader for {hint!r}")


def _build_optional(args: tuple[Any, ...]) -> Reader:
    (inner,) = [a for a in args if a is not type(None)]
    reader = _reader(inner)
    return lambda value, where: None if value is None else reader(value, where)


def _build_dataclass(kind: type) -> Reader:
    hints = typing.get_type_hints(kind)
    fields = [(f.name, _reader(hints[f.name]), _required(f)) for f in dataclasses.fields(kind)]

    def read(value: Any, where: str) -> Any:
        data = _object(value, where)
        given: dict[str, Any] = {}
        for name, reader, required in fields:
            if name in data:
                given[name] = reader(data[name], f"{where}.{name}")
            elif required:
                raise _bad(where, f"`{name}` is missing")
        return kind(**given)

    return read


def _required(f: "dataclasses.Field[Any]") -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _bad(where: str, what: str) -> MessageError:
    return MessageError("bad_field", f"cannot use {where}: {what}", about=where.split(".", 1)[0])


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _bad(where, f"an object is needed, not {type(value).__name__}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _bad(where, f"a list is needed, not {type(value).__name__}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _bad(where, f"text is needed, not {type(value).__name__}")
    if "\x00" in value:  # PostgreSQL stores no NUL in text
        raise _bad(where, "text must not hold a NUL character")
    if _HALF.search(value):
        raise _bad(where, "text must not hold half a surrogate pair")
    return value


def _storable(value: Any) -> Any:
    """Free-form data (an inventory) as databases take it: a card's strange name must not keep its node away."""
    if isinstance(value, str):
        return _HALF.sub("\N{REPLACEMENT CHARACTER}", value).replace("\x00", "\N{REPLACEMENT CHARACTER}")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) <= MAX_INTEGER else None
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    return value


def _integer(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _bad(where, f"an integer is needed, not {type(value).__name__}")
    if abs(value) > MAX_INTEGER:
        raise _bad(where, "the integer does not fit 64 bits")
    return value


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _bad(where, f"a number is needed, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise _bad(where, "the number is too large") from None
    if not math.isfinite(number):
        raise _bad(where, "the number is not finite")
    return number


def _boolean(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _bad(where, f"true or false is needed, not {type(value).__name__}")
    return value


def _enum(kind: type[StrEnum], value: Any, where: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise _bad(where, f"{str(value)[:60]!r} is none of {', '.join(kind)}") from None


_SCALARS: dict[Any, Reader] = {str: _text, int: _integer, float: _number, bool: _boolean}
