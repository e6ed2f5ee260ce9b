"""A router inside the test's own process, with engines that follow a script and clients that speak raw bytes."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from routing.dataplane.client import ClientConnection
from routing.dataplane.router import Router
from routing.keys import new_key
from routing.table import RoutingTable, parse
from tests.e2e.harness import PATIENCE

ANSWER = {"choices": [{"message": {"content": "hi"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One request as an engine got it."""

    line: str
    headers: dict[str, str]
    body: bytes


Script = Callable[[Heard, asyncio.StreamWriter], Awaitable[None]]


def whole(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def stream_head() -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return body


async def say_hi(heard: Heard, writer: asyncio.StreamWriter) -> None:
    writer.write(whole(json.dumps(ANSWER).encode()))


class Engine:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.heard: list[Heard] = []
        self.gone = asyncio.Event()  # a router's connection has ended
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *rest = head.strip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (row.partition(":") for row in rest)}
                if headers.get("transfer-encoding") == "chunked":
                    body = await chunks(reader)
                else:
                    body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.heard.append(heard := Heard(line=line, headers=headers, body=body))
                running.add(asyncio.ensure_future(self.script(heard, writer)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.gone.set()
            for task in running:
                task.cancel()
            writer.close()
            self._open.discard(writer)

    async def close(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        await until(lambda: not self._open, "the engine's end")


class Wire:
    """A client's socket."""

    def __init__(self, stage: "Stage", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._stage, self.reader, self.writer = stage, reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: Any, *headers: str, path: str = "/v1/chat/completions") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send(self.head(f"Content-Length: {len(data)}", *headers, path=path) + data)

    def head(self, *headers: str, path: str = "/v1/chat/completions", key: str | None = None) -> bytes:
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key or self._stage.key}", *headers]
        return "\r\n".join([*lines, "", ""]).encode()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next final answer whole."""
        while (found := await self.one())[0] < 200:
            pass
        return found

    async def one(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer, interim ones too."""
        head = (await wait(self.reader.readuntil(b"\r\n\r\n"))).decode()
        line, *rest = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (row.partition(":") for row in rest)}
        if headers.get("transfer-encoding") == "chunked":
            return int(line.split()[1]), headers, await wait(chunks(self.reader))
        body = await wait(self.reader.readexactly(int(headers.get("content-length", 0))))
        return int(line.split()[1]), headers, body

    async def end(self) -> bytes:
        """What is left until the router closes."""
        return await wait(self.reader.read())


async def wait(thing: Awaitable[Any], seconds: float = 10.0) -> Any:
    return await asyncio.wait_for(thing, seconds * PATIENCE)


async def until(check: Callable[[], Any], what: str, seconds: float = 10.0) -> Any:
    deadline = asyncio.get_running_loop().time() + seconds * PATIENCE
    while not (found := check()):
        assert asyncio.get_running_loop().time() < deadline, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.005)
    return found


class Stage:
    """`async with Stage() as stage`: engines first, then `open()` as many clients as wanted."""

    def __init__(
        self, *, cors: tuple[bytes, ...] = (), expires: str | None = None, may: Any = None, **route: Any
    ) -> None:
        """`expires`: the key's end; `may`: the models it allows; `route`: the model's entry besides its endpoints."""
        self.model = "m"
        self._expires, self._may = expires, may
        self.key, self._prefix, self._sha256 = new_key()
        self._cors, self._route = cors, route
        self.usage: list[dict[str, Any]] = []
        self.engines: list[Engine] = []
        self.raw: dict[asyncio.StreamWriter, Any] = {}
        self.servers: list[asyncio.AbstractServer] = []
        self._wires: list[Wire] = []
        self._endpoints: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        self.router = Router(
            parse(self._routes()), cors=self._cors, on_usage=lambda row: self.usage.append(msgspec.structs.asdict(row))
        )
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: ClientConnection(self.router), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.servers.append(server)
        return self

    async def __aexit__(self, *_: object) -> None:
        for wire in self._wires:
            wire.writer.transport.abort()
        for server in self.servers:
            server.close()
        await until(lambda: not self.router.clients, "the clients' end")
        for engine in self.engines:
            await engine.close()
        for task in self.raw.values():
            task.cancel()
        await until(lambda: not self.raw, "the raw engines' end")
        await asyncio.sleep(0)

    async def engine(self, script: Script = say_hi, **more: Any) -> Engine:
        engine = Engine(script)
        server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=2**26)
        self.servers.append(server)
        self.engines.append(engine)
        self.endpoint(server.sockets[0].getsockname()[1], **more)
        return engine

    def endpoint(self, port: int, address: str = "127.0.0.1", **more: Any) -> None:
        self._endpoints.append({"id": f"e{len(self._endpoints)}", "url": f"http://{address}:{port}", **more})
        self.router.table = parse(self._routes())

    def with_models(self, *names: str) -> RoutingTable:
        """A table of models without replicas."""
        models = [{"name": name, "state": "down", "endpoints": []} for name in names]
        return parse(self._routes() | {"models": models})

    def _routes(self) -> dict[str, Any]:
        key = {"id": "1", "name": "all", "prefix": self._prefix, "sha256": self._sha256}
        key |= {"expires": self._expires, "models": self._may}
        model = {"name": self.model, "endpoints": self._endpoints, **self._route}
        return {"version": 1, "models": [model], "keys": [key]}

    async def raw_engine(self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        """An engine that does as it likes with each connection."""

        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.raw[writer] = asyncio.current_task()
            try:
                await serve(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.transport.abort()
                del self.raw[writer]

        server = await asyncio.start_server(run, "127.0.0.1", 0, limit=2**16)
        self.servers.append(server)
        self.endpoint(server.sockets[0].getsockname()[1])

    async def open(self) -> Wire:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._wires.append(wire := Wire(self, reader, writer))
        return wire


CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
