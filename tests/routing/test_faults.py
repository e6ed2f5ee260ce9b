"""Faults of other gateways by their rows, with their bounds: F39 and F48.

The other rows stand beside what they are about, and are named there: F40 in test_pressure, F42 and F43 in
test_leaving, F44 in test_processes and tests/e2e/test_chain, F46 in test_keys_admin, F47 and F49 in test_policy.
"""

import asyncio
import contextlib
import dataclasses
import json
import socket
from pathlib import Path

import pytest

from agent_client.machine import events
from agent_client.protocol.states import ShardState
from routing.domain.timers import Timers
from tests.machine.test_table import Life
from tests.routing.stage import ANSWER, CHAT, Heard, Stage, chunk, chunks, stream_head, until, whole
from tests.routing.virtual import in_shifted_time, let_pass

EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
DONE = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "router-http.md"


# -- F39: long prefills -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["streamed", "whole"])
def test_f39_an_engine_that_is_silent_for_ten_minutes_is_delivered(how: str) -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
            await go.wait()
            if how == "whole":
                writer.write(whole(json.dumps(ANSWER).encode()))
                return
            writer.write(stream_head() + chunk(EVENT))
            go.clear()
            await go.wait()
            writer.write(chunk(EVENT) + DONE)

        async with Stage() as stage:
            engine = await stage.engine(script)
            wire = await stage.open()
            wire.post(CHAT | {"stream": how == "streamed"})
            await until(lambda: engine.heard, "the request")
            await let_pass(600)
            go.set()
            if how == "streamed":  # and ten minutes more between two events
                await asyncio.wait_for(wire.reader.readuntil(EVENT), 600)
                await let_pass(600)
                assert not engine.gone.is_set()
                go.set()
                assert (await wire.reader.readuntil(b"0\r\n\r\n")).count(EVENT) == 1
            else:
                status, _, body = await wire.answer()
                assert (status, json.loads(body)) == (200, ANSWER)
            await until(lambda: stage.usage, "the usage row")
            assert (stage.usage[0]["status"], stage.usage[0]["completed"]) == (200, True)
            assert len(engine.heard) == 1  # asked once, and of nobody else

    in_shifted_time(test())


def test_f39_each_timer_is_its_own_and_documented() -> None:
    told = DOCS.read_text(encoding="utf-8")
    names = [each.name for each in dataclasses.fields(Timers)]
    assert names == ["connect", "first_byte", "between_bytes", "total"]
    assert [name for name in names if f"| `{name}`" not in told] == []
    for name in names[1:]:
        late = Timers(**{name: 5.0}).expired
        silent = late(now=100, sent_at=90, asked_at=90, heard_at=None)
        paused = late(now=100, sent_at=90, asked_at=90, heard_at=91)
        assert (bool(silent), bool(paused)) == (name != "between_bytes", name != "first_byte"), name


# -- what is idle between client and router ---------------------------------------------------------------------------


async def idle_proxy(stage: Stage, seconds: float) -> int:
    """A proxy that cuts what says nothing for so long; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = await stage.open()
        wire.send(await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(len(json.dumps(STREAM))))
        with contextlib.suppress(TimeoutError, ConnectionError):
            while data := await asyncio.wait_for(wire.reader.read(2**16), seconds):
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    stage.servers.append(server)
    return int(server.sockets[0].getsockname()[1])


STREAM = CHAT | {"stream": True}


@pytest.mark.parametrize("said", [b"", chunk(EVENT)], ids=["prefill", "pause"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_row_46_five_silent_minutes_of_a_stream_survive_a_proxy_that_cuts_after_one(path: str, said: bytes) -> None:
    """Once its head may be sent, a silent stream gets a comment every 15 s; clients pass over comments."""

    async def test() -> None:
        go = asyncio.Event()

        async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
            writer.write(stream_head() + said)
            await go.wait()
            writer.write(chunk(EVENT) + DONE)

        async with Stage() as stage:
            engine = await stage.engine(script)
            reader, writer = await asyncio.open_connection("127.0.0.1", await idle_proxy(stage, 60))
            head = [f"POST {path} HTTP/1.1", "Host: x", f"X-API-Key: {stage.key}"]
            data = json.dumps(STREAM).encode()
            writer.write("\r\n".join([*head, f"Content-Length: {len(data)}", "", ""]).encode() + data)
            await until(lambda: engine.heard, "the request")
            await let_pass(300)
            go.set()
            await reader.readuntil(b"\r\n\r\n")
            body = await asyncio.wait_for(chunks(reader), 60)
            assert body.replace(b":\n\n", b"") == said[said.find(b"data") : -2] + EVENT + b"data: [DONE]\n\n"
            assert 300 / 15 - 3 <= body.count(b":\n\n") <= 300 / 15
            writer.close()
            await until(lambda: stage.usage, "the usage row")
            assert stage.usage[0]["completed"]

    in_shifted_time(test())


def test_row_46_an_event_that_is_half_said_is_not_torn() -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
            writer.write(stream_head() + chunk(EVENT[:20]))
            await go.wait()
            writer.write(chunk(EVENT[20:]) + DONE)

        async with Stage() as stage:
            engine = await stage.engine(script)
            wire = await stage.open()
            wire.post(STREAM | {"stream_options": {"include_usage": True}})
            await until(lambda: engine.heard, "the request")
            await let_pass(60)
            go.set()
            assert (await wire.answer())[2] == EVENT + b"data: [DONE]\n\n"

    in_shifted_time(test())


@pytest.mark.parametrize("how", ["streamed", "whole"])
def test_row_47_a_client_that_takes_nothing_for_two_minutes_loses_its_place(how: str) -> None:
    """And one that takes a little now and then does not."""

    async def test() -> None:
        size = 2**24

        async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
            event = b"data: " + bytes(size) + b"\n\n"
            writer.write(stream_head() + chunk(event) if how == "streamed" else whole(bytes(size)))

        async with Stage() as stage:
            engine, loop = await stage.engine(script), asyncio.get_running_loop()
            with socket.create_connection(("127.0.0.1", stage.port)) as client:  # which reads when it is told to
                client.setblocking(False)
                data = json.dumps(CHAT | {"stream": how == "streamed"}).encode()
                head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stage.key}\r\n"
                client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
                await until(lambda: engine.heard, "the request")
                for _ in range(4):
                    await let_pass(100)
                    assert stage.router.clients
                    got = 0
                    while got < size // 8:
                        got += len(await loop.sock_recv(client, 2**16))
                await let_pass(130)
                await until(lambda: not stage.router.clients, "its end")
            await until(lambda: stage.usage, "the usage row")
            assert (stage.usage[0]["completed"], stage.router.loads["e0"].outstanding) == (False, 0)

    in_shifted_time(test())


# -- F48: taking one replica out -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("stream_seconds", "stopped_after"), [(300, (300, 310)), (1200, (600, 602))])
def test_f48_a_stream_survives_a_drain_up_to_its_deadline(stream_seconds: int, stopped_after: tuple[int, int]) -> None:
    """The router, and the agent's table of the engine's life, in one time: a five-minute stream ends whole under a
    deadline of ten minutes, which ends one of twenty; new requests go to the other replica from the first moment."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        running = 0

        async def stream(heard: Heard, writer: asyncio.StreamWriter) -> None:
            nonlocal running
            running += 1
            writer.write(stream_head())
            for _ in range(stream_seconds):
                writer.write(chunk(EVENT))
                await asyncio.sleep(1)
            writer.write(DONE)
            running -= 1

        async with Stage() as stage:
            engine = await stage.engine(stream)
            wire = await stage.open()
            wire.post(CHAT | {"stream": True})
            await until(lambda: running, "the stream")
            stage._endpoints[0]["draining"] = True
            other = await stage.engine()
            life = Life(grace=30).until_ready()
            began, stopped_at, looked_at = loop.time(), 0.0, 0.0
            life.on(events.DrainAsked(epoch=1, seconds=600), at=began)

            def look() -> None:
                nonlocal stopped_at, looked_at
                now = loop.time()
                if stopped_at or now - looked_at < 1:
                    return
                looked_at = now
                found = life.on(events.Looked(epoch=1, requests=running), at=now) + life.on(
                    events.Tick(epoch=1), at=now
                )
                if "SendTerm" in found:
                    stopped_at = now
                    for writer in list(engine._open):  # what the engine's end means
                        writer.transport.abort()

            for minute in range(12):
                await let_pass(60, each=look)
                fresh = await stage.open()
                fresh.post(CHAT)
                assert (await fresh.answer())[0] == 200
                assert len(other.heard) == minute + 1
                if not stopped_at:
                    assert life.attempt.state is ShardState.DRAINING  # which is shown, with what is still under way
            assert len(engine.heard) == 1
            least, most = stopped_after
            assert least <= stopped_at - began <= most
            whole_stream = stream_seconds < 600
            heard = await wire.reader.readuntil(b"0\r\n\r\n") if whole_stream else await wire.reader.read(2**22)
            assert heard.count(EVENT) == pytest.approx(min(stream_seconds, 600), abs=2)
            assert (b"[DONE]" in heard, b'"error"' in heard) == (whole_stream, not whole_stream)
            rows = [row for row in stage.usage if row["endpoint"] == "e0"]
            assert [row["completed"] for row in rows] == [whole_stream]
            assert rows[0]["completion_tokens"] >= min(stream_seconds, 600) - 2

    in_shifted_time(test())
