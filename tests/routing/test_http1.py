"""The HTTP/1.1 surface: what a client may offer, how requests are framed, and what is refused."""

import asyncio
import json

import pytest

from tests.routing.stage import ANSWER, CHAT, Stage

OFFER = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")


@pytest.mark.parametrize("cut", [0, 10, 200, 300], ids=lambda cut: f"cut-{cut}")
async def test_an_offer_to_upgrade_is_ignored(stage: Stage, cut: int) -> None:
    engine = await stage.engine()
    wire = await stage.open()
    body = json.dumps(CHAT).encode()
    raw = wire.head(f"Content-Length: {len(body)}", *OFFER) + body
    wire.send(raw[:cut])
    await asyncio.sleep(0.01)  # two reads
    wire.send(raw[cut:])
    wire.post(CHAT)  # the connection is kept
    for _ in range(2):
        status, headers, answer = await wire.answer()
        assert (status, json.loads(answer)) == (200, ANSWER)
        assert "upgrade" not in headers
    assert [heard.body for heard in engine.heard] == [body, body]
    assert not {"upgrade", "http2-settings", "connection"} & set(engine.heard[0].headers)


async def test_an_offer_on_a_chunked_request_and_one_to_close(stage: Stage) -> None:
    engine = await stage.engine()
    wire = await stage.open()
    body = json.dumps(CHAT).encode()
    head = wire.head("Transfer-Encoding: chunked", "Connection: close, upgrade", "Upgrade: websocket")
    wire.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert (await wire.answer())[0] == 200
    assert await wire.end() == b""
    assert engine.heard[0].body == body


async def test_connect_is_refused(stage: Stage) -> None:
    wire = await stage.open()
    wire.send(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n")
    status, headers, _ = await wire.answer()
    assert (status, headers["connection"]) == (405, "close")
    assert await wire.end() == b""
