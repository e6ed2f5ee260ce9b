"""Each timer on its own: a client's head, its body, its silence; an engine's connect, first byte, pauses and total."""

import asyncio
import json
import socket
from typing import Any

import pytest

from routing.dataplane import client, watch
from routing.domain.timers import Timers
from routing.table import TableError, parse
from tests.routing.stage import ANSWER, CHAT, Heard, Stage, chunk, say_hi, stream_head, until, whole

EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_SECONDS", 0.01)


@pytest.mark.parametrize(
    ("timers", "sent", "asked", "heard", "late"),
    [
        ({}, 0, 0, None, ""),
        ({"first_byte": 5}, 900, 994, None, "the engine said nothing for 5 s"),
        ({"first_byte": 5}, 900, 996, None, ""),
        ({"first_byte": 5}, 900, 900, 901, ""),
        ({"between_bytes": 5}, 900, 900, None, ""),
        ({"between_bytes": 5}, 900, 900, 994, "the engine paused for over 5 s"),
        ({"between_bytes": 5}, 900, 900, 996, ""),
        ({"total": 99}, 900, 900, 1000, "the answer took over 99 s"),
        ({"total": 101}, 900, 900, 1000, ""),
    ],
)
def test_what_is_late(timers: dict[str, float], sent: float, asked: float, heard: float | None, late: str) -> None:
    assert Timers(**timers).expired(now=1000, sent_at=sent, asked_at=asked, heard_at=heard) == late


@pytest.mark.parametrize(
    "timers", [{"conect": 1}, {"connect": 0}, {"total": -1}, {"total": "x"}, {"connect": None}, []]
)
def test_timers_that_are_none_are_refused(timers: Any) -> None:
    with pytest.raises(TableError, match=r"^cannot use the routes: .*"):
        parse({"version": 1, "models": [{"name": "m", "endpoints": [], "timers": timers}]})


# -- the client's -----------------------------------------------------------------------------------------------------


async def test_a_head_that_does_not_end_is_408(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "HEAD_SECONDS", 0.1)
    wire = await stage.open()
    wire.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
    assert (await wire.answer())[0] == 408
    assert await wire.end() == b""


async def test_a_body_that_stands_still_is_408_and_a_slow_one_is_none(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.engine()
    monkeypatch.setattr(client, "STALL_SECONDS", 0.15)
    monkeypatch.setattr(client, "HEAD_SECONDS", 0.15)
    body = json.dumps(CHAT).encode()
    slow, still = await stage.open(), await stage.open()
    for wire in (slow, still):
        wire.send(wire.head(f"Content-Length: {len(body)}"))
    for at in range(0, len(body), 8):
        slow.send(body[at : at + 8])
        await asyncio.sleep(0.05)
    assert (await slow.answer())[0] == 200
    status, headers, _ = await still.answer()
    assert (status, headers["connection"]) == (408, "close")


async def test_an_idle_connection_is_closed_and_one_with_an_answer_under_way_is_not(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        await say_hi(heard, writer)

    await stage.engine(script)
    monkeypatch.setattr(client, "IDLE_SECONDS", 0.1)
    idle, busy = await stage.open(), await stage.open()
    busy.post(CHAT)
    assert await idle.end() == b""
    assert (await busy.answer())[0] == 200
    assert await busy.end() == b""


async def test_a_client_that_goes_on_after_a_refusal_is_cut(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LINGER_SECONDS", 0.1)
    wire = await stage.open()
    wire.send(b"nonsense\r\n\r\n")
    assert (await wire.answer())[0] == 400
    await until(lambda: not stage.router.clients, "the end")


# -- the engine's -----------------------------------------------------------------------------------------------------


def saying(*pieces: bytes) -> Any:
    """An engine that says a piece every 0.2 s, the first at once."""

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.2)

    return script


async def test_a_silent_engine_is_waited_for_without_end() -> None:
    async with Stage() as stage:
        await stage.engine(saying(b"", b"", whole(json.dumps(ANSWER).encode())))
        wire = await stage.open()
        wire.post(CHAT)
        assert (await wire.answer())[0] == 200


async def test_a_late_first_byte_is_504_and_the_engine_stops() -> None:
    async with Stage(timers={"first_byte": 0.1}) as stage:
        engine = await stage.engine(saying(b"", b"", b""))
        wire = await stage.open()
        wire.post(CHAT)
        status, _, body = await wire.answer()
        assert (status, json.loads(body)["error"]["type"]) == (504, "server_error")
        await asyncio.wait_for(engine.gone.wait(), 5)
        assert len(engine.heard) == 1
        await until(lambda: stage.usage, "the usage row")
        assert (stage.usage[0]["status"], stage.usage[0]["completed"]) == (504, False)
        wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")  # the client's connection is kept
        assert (await wire.answer())[0] == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_pause_in_a_stream_is_an_error_event(path: str) -> None:
    async with Stage(timers={"between_bytes": 0.1}) as stage:
        await stage.engine(saying(stream_head() + chunk(EVENT), chunk(EVENT)))
        wire = await stage.open()
        wire.post(CHAT | {"stream": True}, path=path)
        heard = await wire.end()
        assert heard.count(EVENT) == 1
        event = heard.partition(EVENT)[2]
        error = json.loads(event.partition(b"data: ")[2].partition(b"\n\n")[0])
        if path == "/v1/messages":
            assert b"event: error\n" in event
            assert (error["type"], error["error"]["type"]) == ("error", "timeout_error")
        else:
            assert error["error"]["type"] == "server_error"
        assert not heard.endswith(b"0\r\n\r\n")


async def test_a_client_that_pauses_is_no_pause_of_the_engine() -> None:
    async with Stage(timers={"between_bytes": 0.2}) as stage:
        size = 16 * 2**20
        await stage.engine(saying(whole(bytes(size))))
        wire = await stage.open()
        wire.post(CHAT)
        await asyncio.sleep(0.6)
        assert len((await wire.answer())[2]) == size


async def test_an_answer_that_takes_too_long_in_all_is_cut() -> None:
    async with Stage(timers={"total": 0.3, "between_bytes": 9}) as stage:
        await stage.engine(saying(stream_head() + chunk(EVENT), *[chunk(EVENT)] * 20))
        wire = await stage.open()
        wire.post(CHAT | {"stream": True})
        heard = await wire.end()
        assert 2 <= heard.count(EVENT) <= 4
        assert b'"error"' in heard


async def test_a_connect_that_takes_too_long_goes_to_another_engine() -> None:
    async with Stage(timers={"connect": 0.1}) as stage:
        with socket.socket() as full:  # a listener whose queue is full answers no connect
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
            stage.endpoint(full.getsockname()[1])
            await stage.engine()
            began = asyncio.get_running_loop().time()
            for _ in range(2):
                wire = await stage.open()
                wire.post(CHAT)
                assert (await wire.answer())[0] == 200
            assert 0.1 <= asyncio.get_running_loop().time() - began < 1.5
            for filler in fillers:
                filler.close()


async def test_a_host_that_vanished_is_asked_for_on_both_sides(stage: Stage) -> None:
    await stage.engine()
    wire = await stage.open()
    wire.post(CHAT)
    assert (await wire.answer())[0] == 200
    (connection,) = stage.router.clients
    ((kept,),) = stage.router.pool._idle.values()
    for transport in (connection._transport, kept.transport):
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
