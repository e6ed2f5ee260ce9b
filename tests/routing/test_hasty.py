"""Engines and clients whose word comes before its time, or never: nobody waits for them for ever."""

import asyncio

import pytest

from routing.dataplane.upstream import Upstream
from tests.routing.stage import CHAT, Stage, until, whole


async def test_a_connection_that_ends_as_it_begins_is_a_failure(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the connect and the request nobody is told of the end."""
    made = Upstream.connection_made

    def ends(upstream: Upstream, transport: asyncio.BaseTransport) -> None:
        made(upstream, transport)
        upstream.abort()

    monkeypatch.setattr(Upstream, "connection_made", ends)
    await stage.engine()
    wire = await stage.open()
    wire.post(CHAT)
    assert (await wire.answer())[0] == 503
    assert stage.router.loads["e0"].outstanding == 0


@pytest.mark.parametrize(
    "line", [b"\r\n", b"HTTP/1.1\r\n", b"SSH-2.0-x 101\r\n", b"HTTP/1.1 2000 OK\r\n", b"x" * 2**17]
)
async def test_a_probe_that_gets_no_http_has_failed(stage: Stage, line: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(line)
        await reader.read()

    await stage.raw_engine(serve)
    (endpoint,) = stage.router.table.routes["m"].endpoints
    health = stage.router.loads["e0"].health
    for _ in range(3):
        health.failed("made by the test", now=0.0)
    before = health.failures
    await stage.router.chooser._probe(endpoint, stage.router.loads["e0"])
    assert health.failures == before + 1
    assert health.reason.startswith("does not answer a probe")


async def test_a_client_of_http_1_0_gets_no_interim_answer_while_its_upload_waits(stage: Stage) -> None:
    go = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await go.wait()
        await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
        writer.write(whole(b"{}"))

    await stage.raw_engine(serve)
    wire = await stage.open()
    model = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    file = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + bytes(2**24) + b"\r\n--b--\r\n"
    kind = "Content-Type: multipart/form-data; boundary=b"
    head = wire.head(f"Content-Length: {len(model) + len(file)}", kind, path="/v1/audio/transcriptions")
    wire.send(head.replace(b"HTTP/1.1", b"HTTP/1.0") + model + file)
    (connection,) = await until(lambda: stage.router.clients, "the client")
    await until(lambda: connection._out.held, "the upload to be held")
    connection._nudge()
    go.set()
    assert (await wire.one())[0] == 200
