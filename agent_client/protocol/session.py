"""One agent stream as a state machine without I/O: texts in, events out, frames to send. Both ends run it.

What it keeps true: nothing but `register` comes first; frames are numbered and an old number changes nothing; a peer
that answers no ping is found out; an unknown message is answered and closes nothing; a broken frame closes with its
reason.
Times are seconds of the caller's own monotonic clock.
"""

from dataclasses import dataclass
from enum import StrEnum

from agent_client.protocol.codec import FrameError, MessageError, decode, encode
from agent_client.protocol.messages import (
    FROM_AGENT,
    FROM_SERVER,
    Error,
    Message,
    Ping,
    Pong,
    Register,
    Registered,
)
from agent_client.protocol.states import CloseCode


class Role(StrEnum):
    AGENT = "agent"
    SERVER = "server"


class SessionState(StrEnum):
    OPENING = "opening"  # connected; `register` has not been sent or seen
    REGISTERING = "registering"  # `register` is with the server
    OPEN = "open"
    CLOSED = "closed"


class LocalProtocolError(RuntimeError):
    """cannot send that now: a mistake of this side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    message: Message
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """The peer answered a ping: the stream works in both directions."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """A frame with a number that was passed already; it changes nothing."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A message that can't be used; the peer has been told and the stream goes on."""

    code: str
    detail: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    code: CloseCode
    reason: str


Event = Received | RoundTrip | Stale | Rejected | Closed

#: (role of the sender, state) → what it may send. Error, Ping and Pong beside these: always until closed.
MAY_SEND: dict[tuple[Role, SessionState], tuple[type, ...]] = {
    (Role.AGENT, SessionState.OPENING): (Register,),
    (Role.AGENT, SessionState.REGISTERING): (),
    (Role.AGENT, SessionState.OPEN): tuple(k for k in FROM_AGENT if k is not Register),
    (Role.SERVER, SessionState.OPENING): (),
    (Role.SERVER, SessionState.REGISTERING): (Registered,),
    (Role.SERVER, SessionState.OPEN): tuple(k for k in FROM_SERVER if k is not Registered),
}
ALWAYS = (Error, Ping, Pong)
TOLD_BEFORE_CLOSING = (CloseCode.BAD_FRAME, CloseCode.TOO_BIG, CloseCode.TIMEOUT, CloseCode.SUPERSEDED)


class Session:
    """See the module. A ping every 15 s with 10 s for the answer finds a half-open link within 25 s (DESIGN.md 4)."""

    def __init__(
        self,
        role: Role,
        *,
        now: float,
        ping_interval: float = 15.0,
        ping_timeout: float = 10.0,
        hello_timeout: float = 20.0,
    ) -> None:
        self.role = role
        self.state = SessionState.OPENING
        self.closed: Closed | None = None
        self._ping_interval = ping_interval
        self._ping_timeout = ping_timeout
        self._hello_deadline = now + hello_timeout
        self._sent_seq = 0
        self._seen_seq = 0
        self._out: list[str] = []
        self._ping_number = 0
        self._ping_sent_at: float | None = None
        self._next_ping_at = now + ping_interval

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Queue a message. Raises LocalProtocolError out of turn, FrameError when it is over 1 MiB."""
        if self.state is SessionState.CLOSED:
            raise LocalProtocolError(f"cannot send {message.TYPE}: the session is closed")
        if type(message) not in ALWAYS and type(message) not in MAY_SEND[self.role, self.state]:
            raise LocalProtocolError(f"cannot send {message.TYPE} as {self.role} while {self.state}")
        self._put(message)
        self._advance(message)

    def frames(self) -> list[str]:
        """Take what is to be sent, in order."""
        out, self._out = self._out, []
        return out

    def ping(self, now: float) -> None:
        """Ask for a round trip now, unless one is under way."""
        if self.state is not SessionState.CLOSED and self._ping_sent_at is None:
            self._ping_number += 1
            self._ping_sent_at = now
            self._next_ping_at = now + self._ping_interval
            self._put(Ping(number=self._ping_number))

    def close(self, code: CloseCode, reason: str) -> Closed:
        """End the session; the caller sends what is queued and closes the transport. The first reason stays.

        The reason goes ahead as an `error`: not every server passes a close frame's text on, and it holds 123 bytes.
        """
        if self.closed is None:
            if code in TOLD_BEFORE_CLOSING:
                self._put(Error(code=code.name.lower(), detail=reason))
            self.state = SessionState.CLOSED
            self.closed = Closed(code=code, reason=reason)
        return self.closed

    # -- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, text: str | bytes, now: float) -> list[Event]:
        """What one frame means. After Closed nothing more comes."""
        if self.state is SessionState.CLOSED:
            return []
        accept = FROM_SERVER if self.role is Role.AGENT else FROM_AGENT
        try:
            message, seq = decode(text, accept=accept)
        except FrameError as error:
            return [self.close(CloseCode.TOO_BIG if error.too_big else CloseCode.BAD_FRAME, str(error))]
        except MessageError as error:
            return self._reject(error.code, str(error), error.about)
        if seq <= self._seen_seq:
            return [Stale(seq=seq)]
        self._seen_seq = seq
        return self._take(message, seq, now)

    def _take(self, message: Message, seq: int, now: float) -> list[Event]:
        if isinstance(message, Ping):
            self._put(Pong(number=message.number))
            return []
        if isinstance(message, Pong):
            return self._take_pong(message, now)
        peer = Role.SERVER if self.role is Role.AGENT else Role.AGENT
        if type(message) not in ALWAYS and type(message) not in MAY_SEND[peer, self.state]:
            detail = f"cannot take {message.TYPE} while the session is {self.state}"
            if self.state is SessionState.OPENING:
                return [self.close(CloseCode.BAD_FRAME, f"{detail}: `register` comes first")]
            return self._reject("out_of_turn", detail, message.TYPE)
        self._advance(message)
        return [Received(message=message, seq=seq)]

    def _take_pong(self, message: Pong, now: float) -> list[Event]:
        if self._ping_sent_at is None or message.number != self._ping_number:
            return []
        seconds, self._ping_sent_at = now - self._ping_sent_at, None
        return [RoundTrip(seconds=seconds)]

    def _reject(self, code: str, detail: str, about: str) -> list[Event]:
        # An `error` is never answered with an `error`: two confused peers would talk for ever.
        if about != Error.TYPE:
            self._put(Error(code=code, detail=detail, about=about))
        return [Rejected(code=code, detail=detail, about=about)]

    # -- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Event]:
        """Do what is due at `now`: ping, or find that the peer is gone."""
        if self.state is SessionState.CLOSED:
            return []
        if self.state in (SessionState.OPENING, SessionState.REGISTERING) and now >= self._hello_deadline:
            return [self.close(CloseCode.TIMEOUT, "cannot go on: registration was not completed in time")]
        if self._ping_sent_at is not None:
            if now - self._ping_sent_at >= self._ping_timeout:
                late = f"cannot go on: the {'server' if self.role is Role.AGENT else 'agent'} did not answer a ping"
                return [self.close(CloseCode.TIMEOUT, f"{late} within {self._ping_timeout:g} s")]
        elif now >= self._next_ping_at:
            self.ping(now)
        return []

    def next_deadline(self) -> float:
        """When `tick` has something to do next (seconds of the caller's clock)."""
        due = self._next_ping_at if self._ping_sent_at is None else self._ping_sent_at + self._ping_timeout
        return due if self.state is SessionState.OPEN else min(due, self._hello_deadline)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _put(self, message: Message) -> None:
        frame = encode(message, seq=self._sent_seq + 1)
        self._sent_seq += 1
        self._out.append(frame)

    def _advance(self, message: Message) -> None:
        if isinstance(message, Register):
            self.state = SessionState.REGISTERING
        elif isinstance(message, Registered):
            self.state = SessionState.OPEN
