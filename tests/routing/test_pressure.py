"""Back pressure: however long a stream, however slow or many the clients, a router's memory stays and others go on."""

import asyncio
import contextlib
import fcntl
import json
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from routing.dataplane.client import HEAD_SECONDS
from tests.e2e.harness import PATIENCE, wait_for
from tests.routing.test_router import Run, chat, run

__all__ = ["run"]

EVENT = b'data: {"choices":[{"delta":{"content":"' + b"x" * 16_000 + b'"}}]}\n\n'
PIECE = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Gusher:
    """An engine in a thread that answers with `size` bytes of events as fast as they are taken."""

    def __init__(self, size: int) -> None:
        self.sent, self._size = 0, size
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._one, args=(self._listener.accept()[0],), daemon=True).start()

    def _one(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while b'"m' not in client.recv(2**16):
                pass
            client.sendall(HEAD)
            for _ in range(self._size // len(PIECE)):
                client.sendall(PIECE)
                self.sent += len(PIECE)
            client.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(LAST), LAST))
            client.recv(1)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def gushers() -> Iterator[list[Gusher]]:
    found: list[Gusher] = []
    yield found
    for each in found:
        each.close()


def ask(run: Run, **more: Any) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", run.port))
    client.settimeout(20)
    body = json.dumps(chat(stream=True, **more)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {run.key}\r\n"
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return client


def read(client: socket.socket, size: int) -> int:
    got, buffer = 0, bytearray(2**18)
    while got < size and (count := client.recv_into(buffer)):
        got += count
    return got


def memory(run: Run) -> int:
    """The router's resident bytes."""
    status = Path(f"/proc/{run.processes[-1].pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def gush(run: Run, gushers: list[Gusher], size: int) -> Gusher:
    gushers.append(gusher := Gusher(size))
    run.write([gusher.port])
    run.start()
    return gusher


def check_a_long_stream(run: Run, gushers: list[Gusher], size: int) -> None:
    gush(run, gushers, size)
    with ask(run) as client:
        read(client, 2**22)
        before, most, got = memory(run), 0, 2**22
        while got < size - 2**23:
            got += read(client, 2**22)
            most = max(most, memory(run))
        rest = b""
        while not rest.endswith(b"0\r\n\r\n"):
            rest += client.recv(2**18)
    assert most - before < 4 * 2**20
    row = wait_for(run.usage, "the usage row")[0]
    assert (row["completed"], row["completion_tokens"]) == (True, 2)


def test_a_long_stream_takes_no_memory(run: Run, gushers: list[Gusher]) -> None:
    check_a_long_stream(run, gushers, 30 * 2**20)


@pytest.mark.heavy
def test_f40_a_stream_of_200_mb_takes_no_memory_and_its_usage_is_recorded(run: Run, gushers: list[Gusher]) -> None:
    check_a_long_stream(run, gushers, 200 * 2**20)


def check_a_stalled_client(run: Run, gushers: list[Gusher], fast: int) -> None:
    gusher = gush(run, gushers, 4 * 2**30)
    with ask(run) as client:
        got = read(client, fast)
        before = memory(run)

        def stands() -> bool:
            sent = gusher.sent
            time.sleep(0.2)
            return gusher.sent == sent

        wait_for(stands, "the engine's standing still")
        # What waits in the client's own kernel is the client's: it chooses up to tcp_rmem, and nobody can take it back.
        at_the_client = struct.unpack("i", fcntl.ioctl(client, termios.FIONREAD, bytes(4)))[0]
        assert gusher.sent - got - at_the_client <= 8 * 10**6
        assert memory(run) - before < 4 * 2**20


def test_a_client_that_stalls_holds_its_engine_back(run: Run, gushers: list[Gusher]) -> None:
    check_a_stalled_client(run, gushers, 50 * 2**20)


@pytest.mark.heavy
def test_a_client_that_stalls_after_a_fast_gigabyte_holds_its_engine_back(run: Run, gushers: list[Gusher]) -> None:
    check_a_stalled_client(run, gushers, 2**30)


def test_a_client_that_reads_slowly_takes_no_memory_and_slows_no_neighbour(run: Run, gushers: list[Gusher]) -> None:
    gush(run, gushers, 2**28)
    run.write([gushers[0].port, run.engine()[0]])
    slow = [ask(run) for _ in range(4)]  # half of them get the engine that gushes
    wait_for(lambda: gushers[0].sent > 2**20, "the stream")
    try:
        before, times = memory(run), []
        for _ in range(30):
            for each in slow:
                each.recv(64)  # 64 bytes in some 20 ms: about a kilobyte each second would take 16 times as long
            began = time.monotonic()
            with socket.create_connection(("127.0.0.1", run.port)) as client:
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert client.recv(2**16)
            times.append(time.monotonic() - began)
            time.sleep(0.02)
        assert sorted(times)[15] < 0.05 * PATIENCE
        assert memory(run) - before < 4 * 2**20
    finally:
        for each in slow:
            each.close()


async def _slow_clients(run: Run, count: int) -> None:
    """Half of them send a head, half a body, a byte now and then; others are served meanwhile."""
    wires, opened = [], time.monotonic()
    try:
        for number in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", run.port)
            wires.append((reader, writer))
            key = f"Authorization: Bearer {run.key}\r\nContent-Length: 1000\r\n\r\n" if number % 2 else "X-A: b"
            writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{key}".encode())
        times = []
        for number in range(40):
            for _, writer in wires[number % 4 :: 4]:
                if not writer.transport.is_closing():
                    writer.write(b"x")
                else:  # where the machine is busy it had no whole head when its time was over, and for nothing else
                    assert time.monotonic() - opened > HEAD_SECONDS
            began = time.monotonic()
            status, _, _ = await asyncio.to_thread(run.status, chat())
            assert status == 200
            times.append(time.monotonic() - began)
        assert sorted(times)[len(times) // 2] < 0.25 * PATIENCE
        assert memory(run) < 200 * 10**6
    finally:
        for _, writer in wires:
            writer.transport.abort()
        await asyncio.sleep(0)


async def test_slow_clients_stop_nobody(run: Run) -> None:
    run.write([run.engine()[0]])
    run.start()
    await _slow_clients(run, 200)


@pytest.mark.heavy
async def test_2000_slow_clients_stop_nobody(run: Run) -> None:
    run.write([run.engine()[0]])
    run.start()
    await _slow_clients(run, 2000)
