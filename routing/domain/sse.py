"""Reads a server-sent event stream in pieces of any size: usage, an error in mid-stream, the end."""

import re

from routing.domain.usage import TAIL_BYTES, Facts, note_last_usage, read_event

#: What an event with content has in it, by path; elsewhere `"choices"`.
_CONTENT = {"/v1/messages": b'"content_block_delta"', "/v1/responses": b'.delta"'}
#: Of an event that grows over this only the end is kept: memory stays bounded whatever an engine sends.
EVENT_BYTES = 8 * 2**20
#: A blank line after a line's end, and those that are more than one event needs. The first match ends each search, so
#: that whatever an engine sends each byte is looked at once.
_END = re.compile(rb"\n\r?\n")
_BLANK = re.compile(rb"[\r\n]+")


class SseReader:
    """`feed` returns the bytes to pass on; with `strip_usage` the usage-only event is taken out."""

    __slots__ = ("_content", "_large", "_rest", "_strip", "facts")

    def __init__(self, *, path: str = "", strip_usage: bool = False) -> None:
        self.facts = Facts()
        self._content = _CONTENT.get(path, b'"choices"')
        self._strip = strip_usage
        self._rest = bytearray()  # the beginning of an event whose end has not come
        self._large: bytearray | None = None  # the end of an event that is too large; what came of it is passed on

    def feed(self, data: bytes) -> bytes:
        if (
            self._rest
            or self._large is not None
            or not data.endswith(b"\n\n")
            or b'"usage"' in data
            or b'"error"' in data
            or b"[DONE]" in data
            or b"\r" in data
        ):
            return self._feed(data)
        # Whole events with nothing but content, as almost all reads are.
        if data.find(b"\n\n") == len(data) - 2:
            self.facts.events += self._content in data
        else:
            self.facts.events += sum(self._content in event for event in data.split(b"\n\n"))
        return data

    def finish(self) -> bytes:
        """What is left when the stream ends without a closing blank line."""
        if self._large is not None:
            self._large_ended(self._large)
        rest = bytes(self._rest)
        self._rest.clear()
        if rest:
            self._look(rest)
        return rest if self._strip else b""

    @property
    def between_events(self) -> bool:
        """Whether an event may be put in after what was passed on."""
        return (self._strip or not self._rest) and self._large is None

    def _feed(self, data: bytes) -> bytes:
        if self._large is not None:
            return self._feed_large(self._large, data)
        buffer = self._rest
        begin = max(len(buffer) - 3, 0)  # a blank line may be cut in two
        buffer += data
        out, start = [], 0
        while (end := _event_end(buffer, start, max(begin, start))) > 0:
            event = bytes(buffer[start:end])
            if not (self._look(event) and self._strip):
                out.append(event)
            start = end
        del buffer[:start]
        if len(buffer) > EVENT_BYTES:
            self._large = buffer[-TAIL_BYTES:]
            out.append(bytes(buffer))
            buffer.clear()
        return b"".join(out) if self._strip else data

    def _feed_large(self, tail: bytearray, data: bytes) -> bytes:
        begin = max(len(tail) - 3, 0)
        tail += data
        found = _END.search(tail, begin)
        if found is None:
            del tail[:-TAIL_BYTES]
            return data
        rest = bytes(tail[found.end() :])
        self._large_ended(tail[: found.end()])
        return data[: len(data) - len(rest)] + self._feed(rest)

    def _large_ended(self, tail: bytearray) -> None:
        self._large = None
        self.facts.events += 1  # nothing but content makes an event large
        note_last_usage(tail, self.facts)

    def _look(self, event: bytes) -> bool:
        """Note what an event says; True for one that carries usage and nothing else."""
        at = 0 if event.startswith(b"data:") else event.find(b"\ndata:") + 1
        told = event.startswith(b"data:", at)
        payload = event[at + 5 :].lstrip().partition(b"\n")[0].strip() if told else b""
        if payload == b"[DONE]":
            self.facts.done = True
        elif (b'"error"' in payload or b'"usage"' in payload) and read_event(payload, self.facts):
            return True
        else:
            self.facts.events += self._content in event
        return False


def _event_end(buffer: bytearray, start: int, begin: int) -> int:
    """Index after the blank line that ends the event at `start`, looked for from `begin` on, or -1."""
    found = _BLANK.match(buffer, start) or _END.search(buffer, begin)
    return found.end() if found else -1
