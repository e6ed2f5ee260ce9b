"""The tokens of a request as the engine counted them: OpenAI's and Anthropic's shapes, in events and whole answers."""

from dataclasses import dataclass
from typing import Any

import msgspec

#: A longer answer is passed on without its usage being read.
WHOLE_BYTES = 1_000_000


@dataclass(slots=True)
class Facts:
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    events: int = 0  # events with content: at least that many tokens were seen
    done: bool = False
    failed: bool = False  # the engine said so: a `[DONE]` after it means nothing


class _Event(msgspec.Struct):
    """What matters of an event or answer, of any shape; what an engine says is checked where it is used."""

    type: Any = None
    error: Any = None
    usage: Any = None
    choices: Any = None
    message: Any = None  # Anthropic's `message_start`
    response: Any = None  # OpenAI's `response.completed` and its like


class _Whole(msgspec.Struct):
    usage: Any = None


_event = msgspec.json.Decoder(_Event)
_whole = msgspec.json.Decoder(_Whole)


def read_event(payload: bytes, facts: Facts) -> bool:
    """Note what an event says of usage and errors; True for one that carries usage and nothing else."""
    try:
        event = _event.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    if event.error or event.type in ("error", "response.failed"):
        facts.failed = True
    if event.type == "message_start" and isinstance(event.message, dict):
        usage = event.message.get("usage")  # its output_tokens are a beginning, which message_delta replaces
        note(facts, {"input_tokens": usage.get("input_tokens")} if isinstance(usage, dict) else None)
    elif isinstance(event.response, dict):
        note(facts, event.response.get("usage"))
    note(facts, event.usage)
    return isinstance(event.usage, dict) and event.choices == []


def note(facts: Facts, usage: Any) -> None:
    """Take figures over; what is missing leaves the older one."""
    if not isinstance(usage, dict):
        return
    prompt = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
    completion = _count(usage.get("completion_tokens", usage.get("output_tokens")))
    facts.prompt_tokens = facts.prompt_tokens if prompt is None else prompt
    facts.completion_tokens = facts.completion_tokens if completion is None else completion


class WholeReader:
    """An answer that is no stream: passed on as it comes, its usage read at the end."""

    def __init__(self) -> None:
        self.facts = Facts()
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> bytes:
        self._size += len(data)
        if self._size <= WHOLE_BYTES:
            self._parts.append(data)
        else:
            self._parts.clear()
        return data

    def finish(self) -> bytes:
        try:
            note(self.facts, _whole.decode(b"".join(self._parts)).usage)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pass
        return b""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
