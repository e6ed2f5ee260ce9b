"""Heads that are equal but for the body's length are judged once: what was found then is all that holds later, too."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from routing.domain import http1
from tests.routing.stage import ANSWER, CHAT, Heard, Stage, Wire, whole

SURPLUS = whole(b"{}")


def body(size: int) -> bytes:
    return json.dumps(CHAT | {"user": "u" * size}).encode()


async def learned(stage: Stage) -> Wire:
    """A client whose head is known from a request of another length."""
    wire = await stage.open()
    wire.post(body(1))
    assert (await wire.answer())[0] == 200
    assert len(stage.router.heads) == 1
    assert len(stage.router.pool.heads) == 1
    return wire


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: 12\r\nA: b\r\n\r\nbody", (b"\r\nA: b", 12, b"body")),
        (b"HTTP/1.1 200 OK\r\na: b\r\ncontent-length: 0\r\n\r\n", (b"content-length: ", 0, b"")),
    ],
)
def test_a_head_apart_from_its_length(data: bytes, found: tuple[bytes, int, bytes]) -> None:
    apart = http1.apart(data)
    assert apart is not None
    assert apart[0].endswith(found[0])
    assert (apart[1], data[apart[2] :]) == found[1:]


@pytest.mark.parametrize(
    "data",
    [
        b"POST / HTTP/1.1\r\nContent-Length: 12\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\n\r\nContent-Length: 12\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: +12\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: \r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\n2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1234567890\r\n\r\n",
        b"POST / HTTP/1.1\nContent-Length: 1\n\n",
    ],
)
def test_what_is_not_plain_is_left_to_the_parser(data: bytes) -> None:
    assert http1.apart(data) is None


def test_ever_new_heads_take_no_more_than_their_room() -> None:
    memory: dict[bytes, int] = {}
    for number in range(3 * http1.KNOWN_HEADS):
        http1.remember(memory, b"%d" % number, number)
    assert len(memory) <= http1.KNOWN_HEADS


async def test_a_known_request_cut_at_every_byte(stage: Stage) -> None:
    engine = await stage.engine()
    wire = await learned(stage)
    data = body(9)
    raw = wire.head(f"Content-Length: {len(data)}") + data
    for cut in range(0, len(raw), 3):
        wire.send(raw[:cut])
        await asyncio.sleep(0.002)
        wire.send(raw[cut:])
        assert (await wire.answer())[0] == 200
    assert {heard.body for heard in engine.heard[1:]} == {data}
    assert len({heard.headers["x-request-id"] for heard in engine.heard}) == len(engine.heard)


async def test_known_requests_of_all_lengths_pipelined(stage: Stage) -> None:
    engine = await stage.engine()
    wire = await learned(stage)
    for size in (0, 5, 3, 70_000, 1):
        wire.post(body(size))
    assert [(await wire.answer())[0] for _ in range(5)] == [200] * 5
    assert [len(heard.body) for heard in engine.heard[1:]] == [len(body(size)) for size in (0, 5, 3, 70_000, 1)]


@pytest.mark.parametrize(
    "length", ["+5", "0x5", "5, 5", "5 ", " 5\t", "", "5\r\nContent-Length: 6", "5\r\nTransfer-Encoding: chunked"]
)
async def test_a_known_head_lends_nothing_to_one_that_can_be_read_in_two_ways(stage: Stage, length: str) -> None:
    engine = await stage.engine()
    wire = await learned(stage)
    wire.send(wire.head(f"Content-Length: {length}") + b"hello")
    status = (await wire.answer())[0]
    assert status == 400  # of those that are read after all, `hello` is no JSON
    assert len(engine.heard) == 1


async def test_a_known_heads_key_ends_with_the_table(stage: Stage) -> None:
    await stage.engine()
    wire = await learned(stage)
    stage.router.table = type(stage.router.table)(routes=stage.router.table.routes)  # no keys any more
    wire.post(body(2))
    assert (await wire.answer())[0] == 401


async def test_a_known_heads_key_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC)
    async with Stage(expires=(now + timedelta(hours=1)).isoformat()) as stage:
        await stage.engine()
        wire = await learned(stage)

        class Later(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return now + timedelta(hours=2)

        monkeypatch.setattr("routing.dataplane.router.datetime", Later)
        wire.post(body(2))
        assert (await wire.answer())[0] == 401


async def test_a_client_that_wants_to_be_its_last_is_closed(stage: Stage) -> None:
    await stage.engine()
    wire = await learned(stage)
    wire.post(body(2), "Connection: close")
    assert (await wire.answer())[0] == 200
    assert await wire.end() == b""


async def test_a_known_answer_cut_at_every_byte(stage: Stage) -> None:
    answer = whole(json.dumps(ANSWER | {"id": "a longer one"}).encode())
    at = 0

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        if len(engine.heard) == 1:
            writer.write(whole(json.dumps(ANSWER).encode()))
            return
        writer.write(answer[:at])
        await asyncio.sleep(0.002)
        writer.write(answer[at:])

    engine = await stage.engine(script)
    wire = await learned(stage)
    for at in range(1, len(answer), 3):  # noqa: B007  (the script reads it)
        wire.post(CHAT)
        status, _, got = await wire.answer()
        assert (status, got) == (200, answer.partition(b"\r\n\r\n")[2])
    assert [row["completion_tokens"] for row in stage.usage] == [2] * len(stage.usage)


@pytest.mark.parametrize("at_once", [True, False], ids=["one-read", "two-reads"])
async def test_what_follows_a_known_answer_answers_nobody(stage: Stage, at_once: bool) -> None:
    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        answer = whole(json.dumps(ANSWER).encode())
        if len(engine.heard) != 2:
            writer.write(answer)
        elif at_once:
            writer.write(answer + SURPLUS)
        else:
            writer.write(answer[:-5])
            await asyncio.sleep(0.01)
            writer.write(answer[-5:] + SURPLUS)

    engine = await stage.engine(script)
    wire = await learned(stage)
    for _ in range(2):
        wire.post(CHAT)
    for _ in range(2):
        status, _, got = await wire.answer()
        assert (status, json.loads(got)) == (200, ANSWER)


@pytest.mark.parametrize("line", ["Connection: close", "Content-Type: text/event-stream"])
async def test_answers_with_more_to_say_are_not_remembered(stage: Stage, line: str) -> None:
    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\n{line}\r\nContent-Length: 2\r\n\r\n{{}}".encode())

    await stage.engine(script)
    wire = await stage.open()
    for _ in range(2):
        wire.post(CHAT)
        assert (await wire.answer())[2] == b"{}"
    assert not stage.router.pool.heads


async def test_each_answer_keeps_its_own_length_when_many_share_a_head(stage: Stage) -> None:
    sizes = iter([10, 0, 100_000, 1, 300_000, 2])

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"x" * next(sizes)))

    await stage.engine(script)
    wire = await stage.open()
    lengths = []
    for _ in range(6):
        wire.post(CHAT)
        lengths.append(len((await wire.answer())[2]))
    assert lengths == [10, 0, 100_000, 1, 300_000, 2]
