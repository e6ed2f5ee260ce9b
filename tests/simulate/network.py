"""Streams between agents and the control plane: late, cut, half-open, doubled and reordered as the schedule says."""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from websockets.exceptions import ConnectionClosedError

from tests.simulate.loop import PROCESS, Process, VirtualLoop

OVERTAKEN_SECONDS = 1.0
AGAIN_SECONDS = 8.0  # until which a doubled frame comes once more: what it says may be long over


class Stream:
    """One connection: two ends with frames under way. `deaf`: frames vanish and nobody is told."""

    def __init__(self, network: "Network", node: str) -> None:
        self.network, self.node = network, node
        self.deaf = False
        self.open = True
        self.left = False
        self.to_agent: deque[Any] = deque()
        self.to_server: deque[Any] = deque()
        self.agent_waits, self.server_waits = asyncio.Event(), asyncio.Event()
        self._last = {"agent": 0.0, "server": 0.0}
        self.code: int | None = None
        self.reason = ""

    def carry(self, way: str, item: Any) -> None:
        network, chance = self.network, self.network.chance
        if not self.open or self.deaf or network.parted(self.node):
            return
        if network.lossy and chance.random() < network.lossy:
            return
        at = max(network.loop.time() + chance.uniform(0.001, network.latency), self._last[way] + 1e-6)
        self._last[way] = at
        if network.scramble and not isinstance(item, dict):
            if chance.random() < 0.15:
                network.loop.from_outside(at + chance.uniform(0.0, AGAIN_SECONDS), self._arrive, way, item)
            if chance.random() < 0.15:
                at += chance.uniform(0.0, OVERTAKEN_SECONDS)  # overtaken by what comes after it
        network.loop.from_outside(at, self._arrive, way, item)

    def _arrive(self, way: str, item: Any) -> None:
        if not self.open or self.deaf or self.network.parted(self.node):
            return
        queue, bell = (self.to_agent, self.agent_waits) if way == "agent" else (self.to_server, self.server_waits)
        queue.append(item)
        bell.set()

    def leave(self) -> None:
        """The agent's end is gone. What it sent still arrives, and its close at last: beside a newer stream."""
        if self.open and not self.left:
            self.left = True
            last = max(self._last["server"], self.network.loop.time())
            self.network.loop.from_outside(last + (AGAIN_SECONDS if self.network.scramble else 1e-6), self.cut)

    def cut(self, code: int = 1006, reason: str = "the connection ended") -> None:
        if self.open:
            self.open = False
            self.code, self.reason = code, reason
            self.agent_waits.set()
            self.server_waits.set()
            self.network.streams.pop(self, None)


class AgentEnd:
    """As much of a websocket as the link uses."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def close_code(self) -> int | None:
        return self._stream.code

    @property
    def close_reason(self) -> str:
        return self._stream.reason

    async def send(self, text: str) -> None:
        if not self._stream.open:
            raise ConnectionClosedError(None, None)
        self._stream.carry("server", text)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self._stream.cut(code, reason)

    def __aiter__(self) -> "AgentEnd":
        return self

    async def __anext__(self) -> str:
        stream = self._stream
        while not stream.to_agent:
            if not stream.open:
                raise ConnectionClosedError(None, None)
            stream.agent_waits.clear()
            await stream.agent_waits.wait()
        item = stream.to_agent.popleft()
        if isinstance(item, dict):
            stream.cut(item["code"], item.get("reason", ""))
            raise ConnectionClosedError(None, None)
        return str(item)


class Network:
    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.loop, self.chance = loop, chance
        self.streams: dict[Stream, None] = {}  # in order of opening: a set of objects would differ from run to run
        self.away: set[str] = set()  # nodes behind a partition
        self.latency = 0.02
        self.scramble = False
        self.lossy = 0.0  # share of frames that vanish, as no stream would have it: what is told must be told again
        self.listener: Process | None = None  # the process that takes streams; None or dead: refused
        self.consumer: Callable[[], Any] = lambda: None

    def parted(self, node: str) -> bool:
        return node in self.away

    @contextlib.asynccontextmanager
    async def connect(self, url: str, *, additional_headers: Any, subprotocols: Any, **_: Any) -> Any:
        process = PROCESS.get()
        assert process is not None
        node = process.node.name
        if self.parted(node):
            await asyncio.sleep(10)
            raise TimeoutError("timed out during opening handshake")
        await asyncio.sleep(self.chance.uniform(0.001, self.latency))
        listener = self.listener
        if listener is None or listener.dead:
            raise ConnectionRefusedError(111, "Connection refused")
        stream = Stream(self, node)
        self.streams[stream] = None
        headers = [(name.lower().encode(), value.encode()) for name, value in additional_headers.items()]
        scope = {"type": "websocket", "client": ("127.0.0.1", 1), "headers": headers, "subprotocols": [*subprotocols]}
        token = PROCESS.set(listener)
        try:
            task = self.loop.create_task(self._serve(stream, scope))
        finally:
            PROCESS.reset(token)
        listener.tasks.append(task)
        try:
            yield AgentEnd(stream)
        finally:
            stream.leave()

    async def _serve(self, stream: Stream, scope: Any) -> None:
        opened = [{"type": "websocket.connect"}]

        async def receive() -> Any:
            if opened:
                return opened.pop()
            while not stream.to_server:
                if not stream.open:
                    return {"type": "websocket.disconnect", "code": stream.code or 1006}
                stream.server_waits.clear()
                await stream.server_waits.wait()
            return {"type": "websocket.receive", "text": stream.to_server.popleft()}

        async def send(message: Any) -> None:
            if message["type"] == "websocket.send":
                stream.carry("agent", message["text"])
            elif message["type"] == "websocket.close":
                stream.carry("agent", {"code": message["code"], "reason": message.get("reason", "")})
                self.loop.from_outside(self.loop.time() + 2.0, stream.cut)

        try:
            await self.consumer()(scope, receive, send)
        finally:
            stream.cut()
