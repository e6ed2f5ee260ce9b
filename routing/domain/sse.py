"""Reads a server-sent event stream in pieces of any size: usage, an error in mid-stream, the end."""

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(slots=True)
class StreamFacts:
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    events: int = 0  # data events with content: at least that many tokens were seen
    done: bool = False
    failed: bool = False  # the engine said so: a `[DONE]` after it means nothing


class SseReader:
    """`feed` returns the bytes to pass on; with `strip_usage` the usage-only event is taken out."""

    def __init__(self, *, strip_usage: bool) -> None:
        self.facts = StreamFacts()
        self._strip = strip_usage
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        buffer = self._rest + data
        out = []
        start = 0
        while (end := _event_end(buffer, start)) > 0:
            event = buffer[start:end]
            if not (self._look(event) and self._strip):
                out.append(event)
            start = end
        self._rest = buffer[start:]
        return b"".join(out) if self._strip else data

    def finish(self) -> bytes:
        """What is left when the stream ends without a closing blank line."""
        rest, self._rest = self._rest, b""
        if rest:
            self._look(rest)
        return rest if self._strip else b""

    def _look(self, event: bytes) -> bool:
        """Note what an event says; True for one that carries usage and nothing else."""
        at = event.find(b"data:")
        if at < 0:
            return False
        payload = event[at + 5 :].strip()
        if payload == b"[DONE]":
            self.facts.done = True
            return False
        if b'"error"' not in payload and b'"usage"' not in payload:
            self.facts.events += 1
            return False
        return self._read(payload)

    def _read(self, payload: bytes) -> bool:
        try:
            data: Any = msgspec.json.decode(payload)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        if not isinstance(data, dict):
            return False
        if data.get("error"):
            self.facts.failed = True
        usage = data.get("usage")
        if isinstance(usage, dict):
            self.facts.prompt_tokens = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
            self.facts.completion_tokens = _count(usage.get("completion_tokens", usage.get("output_tokens")))
        if data.get("choices"):
            self.facts.events += 1
        return isinstance(usage, dict) and data.get("choices") == []


def _event_end(buffer: bytes, start: int) -> int:
    """Index after the blank line that ends the event, or -1."""
    unix, dos = buffer.find(b"\n\n", start), buffer.find(b"\r\n\r\n", start)
    ends = [index for index in (unix + 2 if unix >= 0 else -1, dos + 4 if dos >= 0 else -1) if index > 0]
    return min(ends, default=-1)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
