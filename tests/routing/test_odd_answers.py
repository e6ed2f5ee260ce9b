"""Engines whose answers are odd, endless or no answers: the client gets whole HTTP, and the engine has failed."""

import asyncio
import json
from typing import Any

import pytest

from routing.dataplane.upstream import HEAD_BYTES
from tests.routing.stage import ANSWER, CHAT, Stage, say_hi, until, wait

BODY = json.dumps(ANSWER).encode()
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"


async def says(stage: Stage, data: bytes, *, for_ever: bytes = b"") -> list[int]:
    """An engine that answers each request with these bytes; the list has an entry a connection."""
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
            writer.write(data)
            while for_ever:
                writer.write(for_ever)
                connections[-1] += len(for_ever)
                await writer.drain()

    await stage.raw_engine(serve)
    return connections


NO_ANSWERS = {
    "interim-with-a-body": b"HTTP/1.1 103 Early\r\nContent-Length: 5\r\n\r\nhello",
    "interim-in-chunks": b"HTTP/1.1 103 Early\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + GOOD,
    "another-protocol": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello",
    "no-status": b"HTTP/1.1 007 Bond\r\nContent-Length: 2\r\n\r\n{}",
    "status-too-large": b"HTTP/1.1 999 Much\r\nContent-Length: 2\r\n\r\n{}",
    "no-http": b"hello\r\n\r\n",
    "two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}}",
    "length-and-chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another-coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}",
    "large-head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_BYTES + b"\r\nContent-Length: 2\r\n\r\n{}",
    "many-headers": b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * (HEAD_BYTES // 2) + b"Content-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("case", NO_ANSWERS)
async def test_what_is_no_answer_is_a_failure_with_a_name_and_another_engine_is_asked(stage: Stage, case: str) -> None:
    await says(stage, NO_ANSWERS[case])
    wire = await stage.open()
    wire.post(CHAT)
    status, _, body = await wire.answer()
    assert status == 502
    text = json.loads(body)["error"]["message"]
    assert text.startswith("cannot serve m now: it")
    assert "HEAD" not in text
    assert stage.router.loads["e0"].outstanding == 0
    failures = stage.router.loads["e0"].health
    assert failures.reason == "" or failures.reason.startswith("it")
    other = await stage.engine(say_hi)
    for _ in range(2):  # whoever is asked first
        wire.post(CHAT)
        status, _, body = await wire.answer()
        assert (status, json.loads(body)) == (200, ANSWER)
    assert len(other.heard) == 2


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n", b"HTTP/1.1 102 P\r\nContent-Length: 0\r\n\r\n"]
)
async def test_interim_answers_are_swallowed(stage: Stage, interim: bytes) -> None:
    connections = await says(stage, interim * 3 + GOOD)
    wire = await stage.open()
    for _ in range(2):
        wire.post(CHAT)
        status, headers, body = await wire.one()
        assert (status, json.loads(body)) == (200, ANSWER)
        assert "link" not in headers
    assert len(connections) == 1


async def test_an_answer_without_a_length_ends_with_its_connection_after_an_interim_one_too(stage: Stage) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 102 P\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + BODY)
        writer.close()

    await stage.raw_engine(serve)
    wire = await stage.open()
    wire.post(CHAT)
    assert json.loads((await wire.answer())[2]) == ANSWER
    await until(lambda: stage.usage, "the usage row")
    assert stage.usage[0]["completed"]


ENDLESS = {
    "a-head": (b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n" * 100),
    "a-header": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 1000),
    "interim-answers": (b"", b"HTTP/1.1 103 Early\r\n\r\n" * 100),
    "trailers": (CHUNKED + b"0\r\n", b"X: 1\r\n" * 100),
    "a-trailer": (CHUNKED + b"0\r\nX: ", b"x" * 1000),
    "an-extension": (CHUNKED + b"2;", b"x" * 1000),
}


@pytest.mark.parametrize("case", ENDLESS)
async def test_what_has_no_end_is_cut(stage: Stage, case: str) -> None:
    begin, more = ENDLESS[case]
    sent = await says(stage, begin, for_ever=more)
    wire = await stage.open()
    wire.post(CHAT)
    if begin.startswith(CHUNKED):
        assert b"{}" in await wire.end()  # its end says that it is not whole
    else:
        assert (await wire.answer())[0] == 502
    await until(lambda: stage.usage and not stage.raw, "its end")
    assert not stage.usage[0]["completed"]
    assert sum(sent) < 8 * 2**20  # what fits into sockets, and what is read at once


REFUSALS = {
    "endless": (b"HTTP/1.1 401 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"2\r\n{}\r\n" * 100),
    "silent": (b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\n", b""),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_of_an_engine_that_refuses_the_key_the_head_is_enough(stage: Stage, case: str) -> None:
    begin, more = REFUSALS[case]
    sent = await says(stage, begin, for_ever=more)
    wire = await stage.open()
    wire.post(CHAT)
    status, _, body = await wire.answer()
    assert (status, "the engine refused the router's key" in json.loads(body)["error"]["message"]) == (502, True)
    await until(lambda: stage.usage and not stage.raw, "its end")
    assert not stage.usage[0]["completed"]
    assert sum(sent) < 8 * 2**20
    wire.post(CHAT)  # the client's connection goes on
    assert (await wire.answer())[0] == 502


BODILESS = {
    "204": b"HTTP/1.1 204 No\r\nContent-Length: 40\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "204-chunked": b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "304": b"HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\nhello",
    "204-plain": b"HTTP/1.1 204 No\r\n\r\n",
}


@pytest.mark.parametrize("case", BODILESS)
async def test_a_body_where_none_may_be_is_no_beginning_of_the_next_answer(stage: Stage, case: str) -> None:
    data: Any = BODILESS[case]
    connections = await says(stage, data)
    wire = await stage.open()
    for _ in range(3):
        wire.post(CHAT)
        head = await wait(wire.reader.readuntil(b"\r\n\r\n"))
        assert head.startswith(b"HTTP/1.1 " + case[:3].encode())
        assert b"content-length" not in head.lower()
        assert b"transfer-encoding" not in head.lower()
    wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await wire.answer())[2] == b"ok\n"
    assert len(connections) == (1 if case == "204-plain" else 3)  # who says too much is not asked again there


async def test_a_folded_header_is_one_line_or_nothing(stage: Stage) -> None:
    await says(stage, b"HTTP/1.1 200 OK\r\nX-A: a\r\n X-Evil: b\r\nContent-Length: 2\r\n\r\n{}")
    wire = await stage.open()
    wire.post(CHAT)
    _, headers, _ = await wire.answer()
    assert "x-evil" not in headers
