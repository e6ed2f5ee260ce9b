"""A client that has said all it has to say still gets its answer; one that is gone ends the engine's work."""

import asyncio
import json
import socket
from typing import Any

import pytest

from routing.dataplane import watch
from tests.e2e.harness import PATIENCE
from tests.routing.stage import ANSWER, CHAT, Heard, Stage, Wire, chunk, stream_head, until, wait, whole

EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'


class Slow:
    """Says `first` at once and `last` when told."""

    def __init__(self, first: bytes, last: bytes) -> None:
        self.go, self._first, self._last = asyncio.Event(), first, last

    async def __call__(self, heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(self._first)
        await self.go.wait()
        writer.write(self._last)


def slow(how: str) -> Slow:
    if how == "streamed":
        return Slow(stream_head() + chunk(EVENT), chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    if how == "quiet":
        return Slow(b"", stream_head() + chunk(EVENT) + b"0\r\n\r\n")
    return Slow(b"", whole(json.dumps(ANSWER).encode()))


async def asked(stage: Stage, how: str) -> tuple[Wire, Any, Slow]:
    engine = await stage.engine(script := slow(how))
    wire = await stage.open()
    wire.post(CHAT | {"stream": how != "whole"})
    if how == "streamed":
        assert EVENT in await wait(wire.reader.readuntil(EVENT))
    await until(lambda: engine.heard, "the engine at work")
    return wire, engine, script


@pytest.mark.parametrize("how", ["streamed", "quiet", "whole"])
async def test_a_half_closed_client_gets_its_answer(stage: Stage, how: str) -> None:
    wire, engine, script = await asked(stage, how)
    wire.writer.write_eof()
    await asyncio.sleep(0.7)  # longer than it takes to find out that a client is gone
    assert not engine.gone.is_set()
    script.go.set()
    rest = await wire.end()
    if how == "whole":
        assert json.loads(rest.rpartition(b"\r\n\r\n")[2]) == ANSWER
    else:
        assert (EVENT if how == "quiet" else b"data: [DONE]\n\n") in rest
        assert rest.endswith(b"\r\n0\r\n\r\n")
    await until(lambda: stage.usage, "the usage row")
    assert stage.usage[0]["completed"] is True


async def test_a_half_closed_client_gets_all_its_answers(stage: Stage) -> None:
    await stage.engine()
    wire = await stage.open()
    for _ in range(3):
        wire.post(CHAT)
    wire.writer.write_eof()
    assert [(await wire.answer())[0] for _ in range(3)] == [200] * 3
    assert await wire.end() == b""


@pytest.mark.parametrize("half_closed_before", [False, True], ids=["at-once", "after-its-half"])
@pytest.mark.parametrize("how", ["streamed", "quiet", "whole"])
async def test_f43_a_client_that_is_gone_ends_the_engines_work(
    stage: Stage, how: str, half_closed_before: bool
) -> None:
    wire, engine, _ = await asked(stage, how)
    if half_closed_before:
        wire.writer.write_eof()
        await asyncio.sleep(0.7)
        while not wire.reader.at_eof() and wire.reader._buffer:  # an unread byte would make its end a reset
            await wire.reader.read(2**16)
    began = asyncio.get_running_loop().time()
    wire.writer.close()
    await wait(engine.gone.wait())
    assert asyncio.get_running_loop().time() - began < (1.0 if half_closed_before else 0.2) * PATIENCE
    await until(lambda: stage.usage, "the usage row")
    assert stage.usage[0]["completed"] is False


async def test_an_http10_client_that_ends_is_gone(stage: Stage) -> None:
    engine = await stage.engine(slow("whole"))
    wire = await stage.open()
    body = json.dumps(CHAT).encode()
    wire.send(wire.head(f"Content-Length: {len(body)}").replace(b"HTTP/1.1", b"HTTP/1.0") + body)
    await until(lambda: engine.heard, "the engine at work")
    wire.writer.write_eof()
    await wait(engine.gone.wait())


async def test_a_client_that_leaves_during_connect(stage: Stage) -> None:
    with socket.socket() as full:  # a listener whose queue is full answers no connect
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        stage.endpoint(full.getsockname()[1])
        wire = await stage.open()
        wire.post(CHAT)
        await until(lambda: stage.router.loads["e0"].outstanding, "the connect")
        wire.writer.close()
        await until(lambda: stage.usage, "the usage row", 1.0)
        assert stage.router.loads["e0"].outstanding == 0
        assert (stage.usage[0]["status"], stage.usage[0]["completed"]) == (None, False)
        for filler in fillers:
            filler.close()


async def test_an_answer_that_was_cut_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_SECONDS", 0.01)

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(b"data: " + bytes(2**14) + b"\n\n") * 2000)

    async with Stage(timers={"total": 0.3}) as stage:
        engine = await stage.engine(script)
        wire = await stage.open()
        wire.writer.transport.pause_reading()  # so that the end of its connection takes a while
        wire.post(CHAT | {"stream": True})
        await until(lambda: stage.usage, "the usage row")
        await asyncio.sleep(0.1)
        assert stage.router.clients
        wire.writer.transport.resume_reading()
        await wire.end()
        await until(lambda: not stage.router.clients, "the end")
        assert (len(engine.heard), len(stage.usage)) == (1, 1)


async def test_f42_a_client_that_leaves_after_some_events_is_counted_with_them(stage: Stage) -> None:
    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(EVENT) * 7)
        await asyncio.Event().wait()

    await stage.engine(script)
    wire = await stage.open()
    wire.post(CHAT | {"stream": True})
    for _ in range(5):
        await wait(wire.reader.readuntil(EVENT))
    wire.writer.close()
    await until(lambda: stage.usage, "the usage row")
    assert (len(stage.usage), stage.usage[0]["completed"]) == (1, False)
    assert stage.usage[0]["completion_tokens"] >= 5


async def test_a_client_that_leaves_with_requests_behind_it_ends_the_engines_work(stage: Stage) -> None:
    wire, engine, _ = await asked(stage, "quiet")
    for _ in range(5):
        wire.post(CHAT)
    await asyncio.sleep(0)
    wire.writer.transport.abort()
    await wait(engine.gone.wait(), 1.0)
    assert len(engine.heard) == 1


async def test_a_pipelining_client_that_reads_nothing_gets_no_second_answer(stage: Stage) -> None:
    size = 24 * 2**20

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(bytes(size)))

    engine = await stage.engine(script)
    wire = await stage.open()
    wire.writer.transport.pause_reading()
    for _ in range(3):
        wire.post(CHAT)
    await until(lambda: engine.heard, "the first request")
    await asyncio.sleep(0.2)
    (connection,) = stage.router.clients
    assert connection._transport.get_write_buffer_size() < 2**20
    assert len(engine.heard) == 1
    wire.writer.transport.resume_reading()
    for _ in range(3):
        assert len((await wire.answer())[2]) == size
    idle = [upstream for waiting in stage.router.pool._idle.values() for upstream in waiting]
    assert all(upstream.transport.is_reading() for upstream in idle)  # one that is deaf would hang its next request


@pytest.mark.parametrize("how", ["streamed", "quiet", "whole"])
async def test_a_reset_reaches_the_engine_within_10_ms(stage: Stage, how: str) -> None:
    times = []
    wire, engine, script = await asked(stage, how)
    for _ in range(9):
        engine.gone.clear()
        began = asyncio.get_running_loop().time()
        wire.writer.transport.abort()
        await wait(engine.gone.wait())
        times.append(asyncio.get_running_loop().time() - began)
        wire, count = await stage.open(), len(engine.heard)
        wire.post(CHAT | {"stream": how != "whole"})
        await until(lambda: len(engine.heard) > count, "the engine at work")  # noqa: B023
    assert sorted(times)[4] < 0.01 * PATIENCE
    script.go.set()
