"""How long an engine may take. Long prefills are normal: only the connect has a limit unless a route sets others."""

from dataclasses import dataclass

CONNECT_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Seconds; None: no limit."""

    connect: float = CONNECT_SECONDS
    first_byte: float | None = None  # from the request's last byte sent to the answer's head
    between_bytes: float | None = None  # from one piece of the answer to the next, while the client takes them
    total: float | None = None  # from the request's first byte sent to the answer's end

    def expired(self, *, now: float, sent_at: float, asked_at: float, heard_at: float | None) -> str:
        """What took too long, or nothing.

        `sent_at` and `asked_at`: the request's first and last byte; `heard_at`: the answer's last piece, None before
        its head.
        """
        if self.total is not None and now - sent_at > self.total:
            return f"the answer took over {self.total:g} s"
        if heard_at is None:
            if self.first_byte is not None and now - asked_at > self.first_byte:
                return f"the engine said nothing for {self.first_byte:g} s"
        elif self.between_bytes is not None and now - heard_at > self.between_bytes:
            return f"the engine paused for over {self.between_bytes:g} s"
        return ""
