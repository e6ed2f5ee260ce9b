"""The stream's I/O: dial out, run the sans-I/O session over a WebSocket, and reconnect for ever with full jitter."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from agent_client.protocol.codec import FrameError
from agent_client.protocol.messages import MAX_FRAME_BYTES, SUBPROTOCOL, Error, Message, Register, Registered
from agent_client.protocol.session import Closed, LocalProtocolError, Received, Rejected, Role, Session, SessionState
from agent_client.protocol.states import NEEDS_A_PERSON, CloseCode

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
STABLE_SECONDS = 60.0


def backoff_ceiling(failures: int) -> float:
    """Seconds below which the next pause is drawn: 0.5 x 2 per failure, up to 30."""
    return min(FIRST_PAUSE * 2 ** min(max(failures, 1) - 1, 10), LONGEST_PAUSE)


class Link:
    def __init__(
        self,
        *,
        server: str,
        join_secret: str | None,
        node_id: str,
        register: Callable[[], Awaitable[Register]],
        on_registered: Callable[[Registered], Awaitable[None]],
        on_message: Callable[[Message], Awaitable[None]],
    ) -> None:
        self._url = f"{server}/agent/v1/stream"
        self._secret = join_secret
        self._node_id = node_id
        self._register = register
        self._on_registered = on_registered
        self._on_message = on_message
        self._session: Session | None = None
        self._changed = asyncio.Event()
        self._spread = 0.0
        self._told: tuple[str, str] = ("", "")

    @property
    def open(self) -> bool:
        return self._session is not None and self._session.state is SessionState.OPEN

    def send(self, message: Message) -> bool:
        """Queue a message on the open stream; False when there is none: whole reports make up for it."""
        if not self.open or self._session is None:
            return False
        try:
            self._session.send(message)
        except (LocalProtocolError, FrameError) as error:
            log.error("link.unsent node=%s type=%s error=%s", self._node_id, message.TYPE, error)
            return False
        self._changed.set()
        return True

    async def run(self) -> None:
        """For ever: connect, serve, wait."""
        failures = 0
        while True:
            began = time.monotonic()
            closed = await self._connect()
            if time.monotonic() - began >= STABLE_SECONDS:
                failures = 0
            failures += 1
            ceiling = backoff_ceiling(failures)
            if closed.code in NEEDS_A_PERSON:
                ceiling = LONGEST_PAUSE
            elif failures == 1:
                ceiling = max(ceiling, self._spread if closed.code is CloseCode.GOING_AWAY else 0.0)
            pause = random.uniform(0, ceiling)
            log.warning(
                "link.down node=%s code=%d reason=%s retry=%.1f", self._node_id, closed.code, closed.reason, pause
            )
            await asyncio.sleep(pause)

    async def close(self, farewell: Message) -> None:
        if self.send(farewell):
            await asyncio.sleep(0.1)  # one turn for the writer

    async def _connect(self) -> Closed:
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        try:
            async with connect(
                self._url,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                additional_headers=headers,
                max_size=MAX_FRAME_BYTES,
                ping_interval=None,  # the session pings: both ends measure the same thing
                compression=None,
                open_timeout=10,
                proxy=None,
                close_timeout=2,
            ) as socket:
                return await self._serve(socket)
        except (OSError, InvalidHandshake, InvalidURI, TimeoutError) as error:
            text = str(error) or type(error).__name__
            return Closed(code=CloseCode.UNAVAILABLE, reason=f"cannot reach {self._url}: {text}")
        finally:
            self._session = None

    async def _serve(self, socket: ClientConnection) -> Closed:
        session = self._session = Session(Role.AGENT, now=time.monotonic())
        session.send(await self._register())
        writer = asyncio.create_task(self._write(socket, session))
        try:
            async for text in socket:
                for event in session.receive(text, time.monotonic()):
                    if isinstance(event, Received):
                        await self._take(event.message)
                    elif isinstance(event, Rejected):
                        log.warning("link.rejected node=%s code=%s about=%s", self._node_id, event.code, event.about)
                self._changed.set()
                if session.closed:
                    break
        except ConnectionClosed:
            pass
        finally:
            writer.cancel()
            await asyncio.wait({writer})  # to await it itself would mix its cancellation up with one of ours
            with contextlib.suppress(asyncio.CancelledError, ConnectionClosed):
                writer.result()
        if session.closed:
            with contextlib.suppress(ConnectionClosed):
                await socket.close(int(session.closed.code), session.closed.reason[:100])
            return session.closed
        return Closed(code=_close_code(socket.close_code), reason=socket.close_reason or "the connection ended")

    async def _take(self, message: Message) -> None:
        if isinstance(message, Registered):
            self._spread = message.reconnect_spread_seconds
            self._told = ("", "")
            await self._on_registered(message)
        elif isinstance(message, Error):
            if (message.code, message.detail) != self._told:  # once, not at each try
                self._told = (message.code, message.detail)
                log.error(
                    "link.refused node=%s code=%s %s; %s", self._node_id, message.code, message.detail, message.hint
                )
        else:
            await self._on_message(message)

    async def _write(self, socket: ClientConnection, session: Session) -> None:
        while not session.closed:
            for frame in session.frames():
                await socket.send(frame)
            self._changed.clear()
            pause = max(session.next_deadline() - time.monotonic(), 0.01)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause)
            session.tick(time.monotonic())
        await socket.close(int(session.closed.code), session.closed.reason[:100])


def _close_code(code: int | None) -> CloseCode:
    try:
        return CloseCode(code or CloseCode.GOING_AWAY)
    except ValueError:
        return CloseCode.GOING_AWAY
