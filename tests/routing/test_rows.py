"""Failures 40, 44, 47, 48, 50 and 51 with their numbers. Row 42 is in test_processes, 46 and 49 in test_faults and
tests/e2e/test_router_goes_on."""

import asyncio
import json
import os
import signal
import socket
import time
from typing import Any

import pytest

from tests.e2e.harness import PATIENCE, wait_for
from tests.routing.stage import ANSWER, CHAT, Heard, Stage, Wire, chunk, stream_head, until, wait, whole
from tests.routing.test_pressure import Gusher, gushers, memory
from tests.routing.test_pressure import ask as ask_for_much
from tests.routing.test_processes import Parent, run
from tests.routing.test_router import chat
from tests.support.examples import first_of

__all__ = ["gushers", "run"]

EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'


# -- 40: clients that leave -------------------------------------------------------------------------------------------

ROUTES = ("chat/completions", "completions", "embeddings", "responses", "messages", "rerank")


async def check_leaving(phase: str, route: str, clients: int) -> None:
    """So many clients that leave in this phase, half of them by a reset, half of them asking for a stream: nothing is
    left open, each is in the books once, and its place is free again."""

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        if phase == "mid-answer":
            streams = json.loads(heard.body)["stream"]
            writer.write(stream_head() + chunk(EVENT) if streams else whole(json.dumps(ANSWER).encode())[:-9])
        await asyncio.Event().wait()

    async with Stage(concurrency=10_000) as stage:
        engine, gate = await stage.engine(script), stage.router.admission.gates["m"]
        wires: list[Wire] = []
        for number in range(clients):
            wires.append(wire := await stage.open())
            data = json.dumps(CHAT | {"stream": number % 4 < 2}).encode()
            head = wire.head(f"Content-Length: {len(data)}", path=f"/v1/{route}")
            wire.send(head + (data[:-9] if phase == "before-send" else data))
        asked = 0 if phase == "before-send" else clients
        await until(lambda: len(engine.heard) == asked and len(stage.router.clients) == clients, "all of them", 30)
        if phase == "mid-answer":
            for wire in wires:
                await wait(wire.reader.readuntil(b"\r\n\r\n"))
        began = asyncio.get_running_loop().time()
        for number, wire in enumerate(wires):
            wire.writer.transport.abort() if number % 2 else wire.writer.close()
        await until(lambda: not engine._open and not stage.router.clients, "the end of all")
        assert asyncio.get_running_loop().time() - began < 1.0 * PATIENCE
        await until(lambda: len(stage.usage) == asked, "the usage rows")
        assert {row["completed"] for row in stage.usage} <= {False}
        assert stage.router.loads["e0"].outstanding == 0
        assert stage.router._grid.total(gate._row, 0) == 0


PHASES = pytest.mark.parametrize("phase", ["before-send", "before-first-byte", "mid-answer"])


@PHASES
async def test_row_40_clients_that_leave_leave_nothing_open(phase: str) -> None:
    await check_leaving(phase, "chat/completions", 20)


@pytest.mark.heavy
@PHASES
@pytest.mark.parametrize("route", ROUTES)
async def test_row_40_of_200_clients_that_leave_none_leaves_anything_open(phase: str, route: str) -> None:
    await check_leaving(phase, route, 200)


# -- 44: all replicas look bad ----------------------------------------------------------------------------------------


async def test_row_44_when_all_replicas_answer_500_requests_are_still_spread(stage: Stage) -> None:
    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"{}", "500 Oops"))

    engines = [await stage.engine(script) for _ in range(4)]

    async def ask(count: int) -> None:
        for number in range(count):
            wire = await stage.open()
            wire.post(CHAT | {"seed": number})
            assert (await wire.answer())[0] == 500

    await ask(40)
    assert all(load.health.reason for load in stage.router.loads.values())
    before = [sum(each.line.startswith("POST") for each in engine.heard) for engine in engines]
    await ask(40)
    after = [sum(each.line.startswith("POST") for each in engine.heard) for engine in engines]
    assert [b - a for a, b in zip(before, after, strict=True)] == [10] * 4


# -- 47: slow readers -------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.timeout(120)
def test_row_47_200_clients_that_read_a_byte_a_second_take_no_60_mb(run: Parent, gushers: list[Gusher]) -> None:
    gushers.append(gusher := Gusher(2**30))
    run.write([gusher.port])
    run.start()
    clients = [ask_for_much(run) for _ in range(2)]
    try:
        wait_for(lambda: gusher.sent > 2**20, "the stream")
        before = memory(run)
        clients += [ask_for_much(run) for _ in range(200)]
        most = 0
        for _ in range(15):
            time.sleep(1)
            assert all(len(each.recv(1)) == 1 for each in clients)
            most = max(most, memory(run))
        assert most - before < 60 * 2**20
        sent = gusher.sent
        time.sleep(1)
        assert gusher.sent - sent < 2**20  # the engines stand still, too
    finally:
        for each in clients:
            each.close()


# -- 48: slow clients in three modes ----------------------------------------------------------------------------------


def slow_client(run: Parent, mode: str) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", run.port))
    body = json.dumps(chat("x" * 100_000)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {run.key}\r\n"
    whole_head = f"{head}Content-Length: {len(body)}\r\n\r\n".encode()
    if mode == "reader":  # it asks for an answer that it does not take
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(whole_head + body)
    else:
        client.sendall(head.encode() if mode == "header" else whole_head)
    client.setblocking(False)
    return client


def drip(client: socket.socket, mode: str) -> bool:
    """One byte more; whether the router still listens."""
    try:
        return bool(client.recv(1)) if mode == "reader" else client.send(b"x") == 1
    except BlockingIOError:
        return True
    except OSError:
        return False


def p99(run: Parent, requests: int, meanwhile: Any) -> float:
    """Of the seconds that a request of a client takes that does nothing wrong."""
    took = []
    for number in range(requests):
        meanwhile(number)
        began = time.monotonic()
        assert run.status(chat())[0] == 200
        took.append(time.monotonic() - began)
    return sorted(took)[int(requests * 0.99)]


def check_slow_clients(run: Parent, mode: str, count: int) -> None:
    """The p99 of others stays below twice as long; below 50 ms it is not this machine's to tell."""
    run.write([run.engine()[0]])
    run.start()
    before = p99(run, 200, lambda _: None)
    clients = [slow_client(run, mode) for _ in range(count)]
    try:
        wait_for(lambda: run.status(chat())[0] == 200, "an answer")

        def meanwhile(number: int) -> None:
            for client in clients[number % 50 :: 50]:
                drip(client, mode)

        during = p99(run, 200, meanwhile)
        assert during < max(2 * before, 0.05) * PATIENCE
        assert any(drip(client, mode) for client in clients)
    finally:
        for client in clients:
            client.close()


MODES = ("header", "body", "reader")


@pytest.mark.parametrize("mode", first_of(MODES))
def test_row_48_slow_clients_slow_nobody(run: Parent, mode: str) -> None:
    check_slow_clients(run, mode, 50)


@pytest.mark.heavy
@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", MODES)
def test_row_48_1000_slow_clients_slow_nobody(run: Parent, mode: str) -> None:
    check_slow_clients(run, mode, 1000)


# -- 50: overload -----------------------------------------------------------------------------------------------------

PLACES, SERVICE_SECONDS, LOAD_SECONDS = 8, 0.2, 4.0


async def offer(stage: Stage, per_second: float) -> tuple[int, list[float], set[int]]:
    """Requests at this rate whatever becomes of them: good answers within the time, how long they took, and the other
    statuses."""
    loop, good, others = asyncio.get_running_loop(), list[float](), set[int]()
    began = loop.time()

    async def one() -> None:
        wire, asked_at = await stage.open(), loop.time()
        wire.post(CHAT)
        status, headers, _ = await wire.answer()
        if status != 200:
            others.add(status)
            assert int(headers["retry-after"]) > 0
        elif loop.time() - began <= LOAD_SECONDS:
            good.append(loop.time() - asked_at)
        wire.writer.close()

    asking = []
    for number in range(int(per_second * LOAD_SECONDS)):
        await asyncio.sleep(max(0.0, began + number / per_second - loop.time()))
        asking.append(asyncio.ensure_future(one()))
    await asyncio.gather(*asking)
    return len(good), good, others


@pytest.mark.heavy
async def test_row_50_at_five_times_the_load_goodput_is_nine_tenths_of_the_peak() -> None:
    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(SERVICE_SECONDS)
        writer.write(whole(json.dumps(ANSWER).encode()))

    async with Stage(concurrency=PLACES, queue=PLACES, queue_seconds=5.0) as stage:
        await stage.engine(script)
        capacity = PLACES / SERVICE_SECONDS
        peak, _, _ = await offer(stage, capacity)
        goodput, took, others = await offer(stage, 5 * capacity)
        assert peak > 0.8 * capacity * (LOAD_SECONDS - SERVICE_SECONDS) / PATIENCE
        assert goodput >= 0.9 * peak
        assert others == {429}
        # What was taken is not slowed: it waits for one turn of the queue at most.
        assert max(took) < 3 * SERVICE_SECONDS * PATIENCE


# -- 51: restarts -----------------------------------------------------------------------------------------------------


async def streamed(run: Parent, words: str) -> bytes:
    body = json.dumps(chat(words, stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {run.key}\r\nConnection: close\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", run.port)
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    try:
        return await asyncio.wait_for(reader.read(), 60 * PATIENCE)
    finally:
        writer.close()


@pytest.mark.heavy
@pytest.mark.timeout(240)
async def test_row_51_of_200_streams_over_five_restarts_none_is_cut(run: Parent) -> None:
    run.write([run.engine("--chunk-delay", "0.5")[0]])
    parent = run.start_parent(2)
    words = " ".join(f"w{number}" for number in range(16))
    streams = []
    for _ in range(5):
        before = run.children(parent)
        streams += [asyncio.ensure_future(streamed(run, words)) for _ in range(40)]
        await asyncio.sleep(0.5)
        os.kill(parent.pid, signal.SIGHUP)
        await until(lambda: len(run.children(parent) - before) == 2, "the new processes", 30)  # noqa: B023
        await asyncio.sleep(1)
    answers = await asyncio.gather(*streams)
    assert len(answers) == 200
    assert [answer for answer in answers if not (answer.startswith(b"HTTP/1.1 200") and b"[DONE]" in answer)] == []
    assert {answer.count(b'"content"') for answer in answers} == {answers[0].count(b'"content"')}
    wait_for(lambda: len(run.usage()) == 200, "all usage")
    assert {row["completed"] for row in run.usage()} == {True}
