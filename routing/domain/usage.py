"""The tokens of a request as the engine counted them: OpenAI's and Anthropic's shapes, in events and whole answers."""

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

#: Of a longer answer only the end is kept: engines write its usage there, after what was asked for.
WHOLE_BYTES = 1_000_000
TAIL_BYTES = 65_536

_USAGE = re.compile(r'"usage"\s*:\s*')  # inside a text its quotation marks would be escaped: it is a name


@dataclass(slots=True)
class Facts:
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    events: int = 0  # events with content: at least that many tokens were seen
    done: bool = False
    failed: bool = False  # the engine said so: a `[DONE]` after it means nothing


#: What is looked at of an event or answer is no larger; a larger one is passed over without being built.
VALUE_BYTES = 16_384
_NONE = msgspec.Raw(b"null")


class _Event(msgspec.Struct):
    """What matters of an event or answer, of any shape; what an engine says is checked where it is used."""

    type: msgspec.Raw = _NONE
    error: msgspec.Raw = _NONE
    usage: msgspec.Raw = _NONE
    choices: msgspec.Raw = _NONE
    message: msgspec.Raw = _NONE  # Anthropic's `message_start`
    response: msgspec.Raw = _NONE  # OpenAI's `response.completed` and its like


class _Whole(msgspec.Struct):
    usage: msgspec.Raw = _NONE


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Figures(msgspec.Struct, gc=False):
    prompt_tokens: _Count
    completion_tokens: _Count


class _Usual(msgspec.Struct):
    """A whole answer as OpenAI's engines give it; what else stands in it is passed over without being built."""

    usage: _Figures | None = None


#: Anthropic's `input_tokens` leaves out what came from the cache or went into it: all three make the prompt
#: (platform.claude.com, "Prompt caching"). OpenAI's figures hold what was cached, and have no such names.
_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")
_INPUT = ("input_tokens", *_CACHED)

_event = msgspec.json.Decoder(_Event)
_whole = msgspec.json.Decoder(_Whole)
_usual = msgspec.json.Decoder(_Usual)


def read_event(payload: bytes, facts: Facts) -> bool:
    """Note what an event says of usage and errors; True for one that carries usage and nothing else."""
    try:
        event = _event.decode(payload)
        kind, error, usage = _value(event.type), _value(event.error, large=True), _value(event.usage)
        if error or kind in ("error", "response.failed"):
            facts.failed = True
        if kind == "message_start":
            inner = _usage_in(event.message)  # its output_tokens are a beginning, which message_delta replaces
            note(facts, {name: inner.get(name) for name in _INPUT} if isinstance(inner, dict) else None)
        else:
            note(facts, _usage_in(event.response))
        note(facts, usage)
        return isinstance(usage, dict) and _value(event.choices) == []
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False


def _value(raw: msgspec.Raw, *, large: Any = None) -> Any:
    """What stands there; `large` for what is too large to be looked at."""
    return msgspec.json.decode(raw) if memoryview(raw).nbytes <= VALUE_BYTES else large


def _usage_in(raw: msgspec.Raw) -> Any:
    return _value(_whole.decode(raw).usage) if memoryview(raw)[:1] == b"{" else None


def note(facts: Facts, usage: Any) -> None:
    """Take figures over; what is missing leaves the older one."""
    if not isinstance(usage, dict):
        return
    prompt = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
    if prompt is not None and "prompt_tokens" not in usage:
        prompt += sum(_count(usage.get(name)) or 0 for name in _CACHED)
    completion = _count(usage.get("completion_tokens", usage.get("output_tokens")))
    facts.prompt_tokens = facts.prompt_tokens if prompt is None else prompt
    facts.completion_tokens = facts.completion_tokens if completion is None else completion


class WholeReader:
    """An answer that is no stream: passed on as it comes, its usage read at the end."""

    def __init__(self) -> None:
        self.facts = Facts()
        self._kept: bytes | bytearray = b""
        self._size = 0

    def feed(self, data: bytes) -> bytes:
        self._size += len(data)
        if not self._kept:  # most answers come in one piece
            self._kept = data
            return data
        if not isinstance(self._kept, bytearray):
            self._kept = bytearray(self._kept)
        self._kept += data  # pieces kept apart would take many times their bytes
        if self._size > WHOLE_BYTES and len(self._kept) > 2 * TAIL_BYTES:
            del self._kept[:-TAIL_BYTES]
        return data

    def finish(self) -> bytes:
        kept, self._kept = self._kept, b""
        if self._size > WHOLE_BYTES:
            note_last_usage(kept, self.facts)
        elif not self._usual(kept):
            try:
                note(self.facts, _value(_whole.decode(kept).usage))
            except (ValueError, RecursionError):  # no JSON, and what msgspec says of it
                pass
        return b""

    def _usual(self, kept: bytes | bytearray) -> bool:
        """Whether it was read as most answers can be, at a third of what it costs to look at one of any shape."""
        try:
            figures = _usual.decode(kept).usage
        except (ValueError, RecursionError):
            return False
        if figures is not None:
            self.facts.prompt_tokens, self.facts.completion_tokens = figures.prompt_tokens, figures.completion_tokens
        return True


def note_last_usage(tail: bytes | bytearray, facts: Facts) -> None:
    """Of what is too large to be read whole: engines write their figures at the end."""
    text = tail[-TAIL_BYTES:].decode(errors="replace")
    found = list(_USAGE.finditer(text))
    try:
        note(facts, json.JSONDecoder().raw_decode(text, found[-1].end())[0] if found else None)
    except (ValueError, RecursionError):
        pass


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
