"""Where the network cuts a request or an answer changes nothing: the same bytes come out."""

import asyncio
import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing.domain.sse import SseReader
from tests.routing.stage import CHAT, Heard, Stage, chunk, stream_head

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
PIECES = [b'data: {"choices":[{"delta":{"content":"h\xc3\xa9"}}]}\n\n', b": ping\n\n", USAGE, b"data: [DONE]\n\n"]


class Cut:
    """An engine that says one answer, cut where it is told."""

    def __init__(self, answer: bytes, *, close: bool = False) -> None:
        self._answer, self._close = answer, close
        self.at = [0]

    async def __call__(self, heard: Heard, writer: asyncio.StreamWriter) -> None:
        for start, end in zip([0, *self.at], [*self.at, len(self._answer)], strict=True):
            writer.write(self._answer[start:end])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if self._close:
            writer.close()


BODY = json.dumps(CHAT).encode()
REQUESTS = {
    "length": (f"Content-Length: {len(BODY)}", BODY),
    "chunked": ("Transfer-Encoding: chunked", chunk(BODY[:7]) + chunk(BODY[7:]) + b"0\r\nX-Trailer: a\r\n\r\n"),
    "expecting": (f"Content-Length: {len(BODY)}\r\nExpect: 100-continue", BODY),
    "upgrading": (f"Content-Length: {len(BODY)}\r\nConnection: upgrade\r\nUpgrade: h2c", BODY),
}


@pytest.mark.parametrize("how", REQUESTS)
async def test_a_request_cut_at_every_byte(stage: Stage, how: str) -> None:
    engine = await stage.engine()
    wire = await stage.open()
    header, body = REQUESTS[how]
    raw = wire.head(header, "X-Kept: a") + body
    seen = set()
    for at in range(1, len(raw)):
        wire.send(raw[:at])
        await asyncio.sleep(0.0005)
        wire.send(raw[at:])
        assert (await wire.answer())[0] == 200
        heard = engine.heard.pop()
        seen.add((heard.line, tuple(sorted({**heard.headers, "x-request-id": ""}.items())), heard.body))
    assert len(seen) == 1
    assert seen.pop()[2] == BODY


ANSWERS = {
    "length": b'HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 10\r\n\r\n{"a":"\xc3\xa9"}',
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"ab") + chunk(b"d\r\n") + b"0\r\n\r\n",
    "interim": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "empty": b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n",
    "stream": stream_head() + b"".join(map(chunk, PIECES)) + b"0\r\nX-Trailer: a\r\n\r\n",
}


@pytest.mark.parametrize("how", ANSWERS)
async def test_an_answer_cut_at_every_byte(stage: Stage, how: str) -> None:
    await stage.engine(script := Cut(ANSWERS[how]))
    wire = await stage.open()
    seen = set()
    for at in range(1, len(ANSWERS[how])):
        script.at = [at]
        wire.post(CHAT | {"stream": how == "stream"}, "X-Request-Id: r")
        status, headers, body = await wire.answer()
        seen.add((status, tuple(headers.items()), body))
    assert len(seen) == 1
    if how == "stream":  # the usage that the router asked for is taken out
        assert seen.pop()[2] == b"".join(PIECES).replace(USAGE, b"")


async def test_an_answer_that_ends_with_its_connection_cut_at_every_byte(stage: Stage) -> None:
    answer = b"HTTP/1.1 200 OK\r\nX-A: b\r\n\r\n{}\r\n"
    await stage.engine(script := Cut(answer, close=True))
    wire = await stage.open()
    for at in range(1, len(answer)):
        script.at = [at]
        wire.post(CHAT)
        assert (await wire.answer())[2] == b"{}\r\n"


@pytest.mark.parametrize("seed", range(5))
async def test_pipelined_requests_and_answers_cut_anywhere(stage: Stage, seed: int) -> None:
    rng = random.Random(seed)

    class Echo(Cut):
        async def __call__(self, heard: Heard, writer: asyncio.StreamWriter) -> None:
            cut = Cut(stream_head() + chunk(heard.body[:9]) + chunk(heard.body[9:]) + b"0\r\n\r\n")
            cut.at = sorted(rng.sample(range(1, 80), rng.randrange(6)))
            await cut(heard, writer)

    await stage.engine(Echo(b""))
    wire = await stage.open()
    bodies = [json.dumps(CHAT | {"user": "x" * rng.randrange(300)}).encode() for _ in range(12)]
    raw = b""
    for body in bodies:
        framed = rng.random() < 0.5
        raw += wire.head("Transfer-Encoding: chunked" if framed else f"Content-Length: {len(body)}")
        raw += chunk(body) + b"0\r\n\r\n" if framed else body
    asking = asyncio.ensure_future(_send(wire, raw, rng))
    for body in bodies:
        assert (await wire.answer())[2] == body
    await asking


async def _send(wire: Any, raw: bytes, rng: random.Random) -> None:
    while raw:
        at = rng.randrange(1, 200)
        wire.send(raw[:at])
        raw = raw[at:]
        await asyncio.sleep(0)


LINES = [b"data: ", b"data:", b"event: x\n", b": c\n", b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b"id: 1\n"]
WORDS = [b'{"choices":[{}]}', b'"usage"', b'"error"', b"[DONE]", b"\xff\x00", b"{}", USAGE, PIECES[0]]
PARTS = st.sampled_from(LINES + WORDS) | st.binary(max_size=5)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PARTS, max_size=20).map(b"".join), st.data(), st.booleans())
def test_a_stream_of_anything_is_passed_on_as_it_came(raw: bytes, data: Any, strip: bool) -> None:
    whole = SseReader(path="/v1/chat/completions", strip_usage=strip)
    wanted = whole.feed(raw) + whole.finish()
    pieces = SseReader(path="/v1/chat/completions", strip_usage=strip)
    out, rest = b"", raw
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        out += pieces.feed(rest[:cut])
        rest = rest[cut:]
    out += pieces.finish()
    assert out == wanted
    assert pieces.facts == whole.facts
    if not strip:
        assert out == raw
