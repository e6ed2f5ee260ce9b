"""Framing is a security boundary: what could be read in two ways is refused, and the connection is closed."""

import asyncio
import json
from typing import Any

import pytest

from routing.dataplane import client
from tests.routing.stage import ANSWER, CHAT, Stage, until, wait, whole

BODY = json.dumps(CHAT).encode()
SIZE = str(len(BODY)).encode()
LINE = b"POST /v1/chat/completions HTTP/1.1\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def chunked(size: bytes = b"%x" % len(BODY), *, after: bytes = b"\r\n", end: bytes = b"0\r\n\r\n") -> bytes:
    return CHUNKED + size + b"\r\n" + BODY + after + end


#: Header fields (after Host) and body of a POST, by what is wrong with it.
AMBIGUOUS = {
    "both-lengths": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both-lengths-turned": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "length-twice": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "length-twice-the-same": b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "length-list": b"Content-Length: 5, 5\r\n\r\nhello",
    "length-plus": b"Content-Length: +5\r\n\r\nhello",
    "length-minus": b"Content-Length: -5\r\n\r\nhello",
    "length-hex": b"Content-Length: 0x5\r\n\r\nhello",
    "length-underscore": b"Content-Length: 1_0\r\n\r\nhello",
    "length-blank-within": b"Content-Length: 5 5\r\n\r\nhello",
    "length-empty": b"Content-Length: \r\n\r\nhello",
    "length-overflow": b"Content-Length: 18446744073709551621\r\n\r\nhello",
    "length-arabic-digit": b"Content-Length: \xd9\xa5\r\n\r\nhello",
    "coding-gzip-chunked": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding-chunked-gzip": b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "coding-chunked-twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "coding-header-twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding-identity-first": b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding-x": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "coding-identity": b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "coding-parameter": b"Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n",
    "coding-quoted": b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "coding-vertical-tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "coding-empty": b"Transfer-Encoding: \r\n\r\n",
    "coding-folded": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "space-before-colon": b"Content-Length : 5\r\n\r\nhello",
    "space-in-name": b"Content Length: 5\r\n\r\nhello",
    "tab-before-colon": b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "folded": b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "folded-by-tab": b"X: a\r\n\tContent-Length: 5\r\n\r\nhello",
    "bare-lf": b"X: y\nContent-Length: 5\r\n\r\nhello",
    "bare-lf-at-the-end": b"Content-Length: 5\r\n\nhello",
    "bare-cr": b"X: y\rContent-Length: 5\r\n\r\nhello",
    "nul-in-value": b"X: a\0b\r\nContent-Length: 5\r\n\r\nhello",
    "nul-in-name": b"X\0: a\r\nContent-Length: 5\r\n\r\nhello",
    "control-in-value": b"X: a\x01b\r\nContent-Length: 5\r\n\r\nhello",
    "delete-in-value": b"X: a\x7fb\r\nContent-Length: 5\r\n\r\nhello",
    "no-ascii-in-name": b"X\xff: a\r\nContent-Length: 5\r\n\r\nhello",
    "no-colon": b"Xyz\r\nContent-Length: 5\r\n\r\nhello",
    "no-name": b": a\r\nContent-Length: 5\r\n\r\nhello",
    "host-twice": b"Host: y\r\nContent-Length: 5\r\n\r\nhello",
    "key-twice": b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\nContent-Length: 5\r\n\r\nhello",
    "chunk-size-0x": chunked(b"0x%x" % len(BODY)),
    "chunk-size-plus": chunked(b"+%x" % len(BODY)),
    "chunk-size-minus": chunked(b"-%x" % len(BODY)),
    "chunk-size-blank-before": chunked(b" %x" % len(BODY)),
    "chunk-size-blank-after": chunked(b"%x " % len(BODY)),
    "chunk-size-underscore": chunked(b"%x_" % len(BODY)),
    "chunk-size-empty": chunked(b""),
    "chunk-size-overflow": chunked(b"f" * 17),
    "chunk-size-bare-lf": CHUNKED + b"%x\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    "chunk-size-bare-cr": CHUNKED + b"%x\r" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    "chunk-ends-in-lf": chunked(after=b"\n"),
    "chunk-without-end": chunked(after=b""),
    "chunk-too-long": chunked(after=b"XX"),
    "chunk-extension-lf": chunked(b"%x;a\n" % len(BODY)),
    "chunk-extension-cr-quoted": chunked(b'%x;a="b\r\n"' % len(BODY)),
    "chunk-extension-nul": chunked(b"%x;a\0b" % len(BODY)),
    "last-chunk-lf": chunked(end=b"0\n\n"),
    "last-chunk-half-lf": chunked(end=b"0\r\n\n"),
    "trailer-length": chunked(end=b"0\r\nContent-Length: 7\r\n\r\n"),
    "trailer-coding": chunked(end=b"0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "trailer-no-colon": chunked(end=b"0\r\nfoo\r\n\r\n"),
    "trailer-space-before-colon": chunked(end=b"0\r\nfoo : a\r\n\r\n"),
}
#: Whole heads.
HEADS = {
    "no-host": LINE + b"Content-Length: 0\r\n\r\n",
    "bad-host": LINE + b"Host: a b\r\nContent-Length: 0\r\n\r\n",
    "host-with-path": LINE + b"Host: a/b\r\nContent-Length: 0\r\n\r\n",
    "blank-before-the-first-field": LINE + b" Host: x\r\n\r\n",
    "lines-end-in-lf": b"POST /v1/chat/completions HTTP/1.1\nHost: x\nContent-Length: 0\n\n",
    "coding-in-http10": b"POST /v1/chat/completions HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "http09": b"GET /v1/models\r\n\r\n",
    "http12": b"POST /v1/chat/completions HTTP/1.2\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version-in-small-letters": b"POST /v1/chat/completions http/1.1\r\nHost: x\r\n\r\n",
    "method-in-small-letters": b"post /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n",
    "no-method": b"FOO /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n",
    "tabs-in-the-line": b"POST\t/v1/chat/completions\tHTTP/1.1\r\nHost: x\r\n\r\n",
    "blank-in-target": b"POST /v1/chat/completions x HTTP/1.1\r\nHost: x\r\n\r\n",
    "blank-after-version": b"POST /v1/chat/completions HTTP/1.1 \r\nHost: x\r\n\r\n",
    "nul-in-target": b"POST /v1/\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "no-ascii-in-target": b"POST /v1/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "fragment-in-target": b"POST /v1/chat/completions#a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    "target-without-slash": b"POST v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
}


def post(stage: Stage, rest: bytes) -> bytes:
    key = b"" if b"Authorization" in rest else b"Authorization: Bearer " + stage.key.encode() + b"\r\n"
    return LINE + b"Host: x\r\n" + key + rest


async def refused(stage: Stage, raw: bytes, status: int = 400, *, closed_by_us: bool = False) -> None:
    """It is refused and nothing that follows it is answered, whether it comes at once or byte by byte."""
    engine = await stage.engine()
    for step in (len(raw), 1):
        wire = await stage.open()
        for at in range(0, len(raw), step):
            wire.send(raw[at : at + step])
            if step == 1:
                await asyncio.sleep(0)
        if not closed_by_us:
            wire.send(SMUGGLED)
        answer = await wire.end()
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"\r\nConnection: close\r\n" in answer
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert error["message"].startswith("cannot ")
    assert not engine.heard


@pytest.mark.parametrize("rest", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_an_ambiguous_request_is_refused(stage: Stage, rest: bytes) -> None:
    await refused(stage, post(stage, rest))


@pytest.mark.parametrize("raw", HEADS.values(), ids=HEADS.keys())
async def test_an_ambiguous_head_is_refused(stage: Stage, raw: bytes) -> None:
    await refused(stage, raw)


async def test_a_bad_request_does_not_harm_the_one_before_it(stage: Stage) -> None:
    await stage.engine()
    wire = await stage.open()
    wire.send(post(stage, b"Content-Length: " + SIZE + b"\r\n\r\n" + BODY) + post(stage, b"Content-Length: +5\r\n\r\n"))
    assert (await wire.answer())[0] == 200
    assert (await wire.answer())[0] == 400
    assert await wire.end() == b""


@pytest.mark.parametrize("fields", [b"X: " + b"a" * 40_000, b"X: a\r\n" * 8_000], ids=["long", "many"])
async def test_a_huge_head_is_refused(stage: Stage, fields: bytes) -> None:
    wire = await stage.open()
    wire.send(LINE + b"Host: x\r\n" + fields)
    assert (await wire.end()).startswith(b"HTTP/1.1 431 ")


async def test_chunks_that_are_mostly_extensions_are_refused(stage: Stage) -> None:
    wire = await stage.open()
    wire.send(post(stage, CHUNKED))
    wire.send((b"1;" + b"a" * 1000 + b"\r\nx\r\n") * 1000)
    assert (await wire.answer())[0] == 400


async def test_trailers_are_no_headers(stage: Stage) -> None:
    engine = await stage.engine()
    wire = await stage.open()
    wire.send(post(stage, chunked(end=b"0\r\nX-Evil: 1\r\nHost: y\r\n\r\n")))
    wire.post(CHAT)
    assert [(await wire.answer())[0] for _ in range(2)] == [200, 200]
    assert all("x-evil" not in heard.headers for heard in engine.heard)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat%20HTTP/1.1%0d%0aX-Evil:%201%0d%0a",
        "/v1/chat/completion%73",
        "/v1/../metrics",
        "/v1//chat/completions",
        "/v1/chat/./completions",
        "/v1/load_lora_adapter",
        "/admin",
    ],
)
async def test_an_engine_reads_no_other_path_than_the_router(stage: Stage, path: str) -> None:
    engine = await stage.engine()
    wire = await stage.open()
    wire.post(CHAT, path=path)
    assert (await wire.answer())[0] == 404
    assert not engine.heard


async def test_a_query_and_an_absolute_target_are_passed_on(stage: Stage) -> None:
    engine = await stage.engine()
    wire = await stage.open()
    wire.post(CHAT, path="http://x/v1/chat/completions?a=%0d%0a&b")
    assert (await wire.answer())[0] == 200
    assert engine.heard[0].line == "POST /v1/chat/completions?a=%0d%0a&b HTTP/1.1"


# -- the head is judged before the body -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (LINE + b"Host: x\r\nContent-Length: 1000\r\n", 401),
        (LINE + b"Host: x\r\nAuthorization: Bearer llmgw_aaaaaaaa_x\r\nTransfer-Encoding: chunked\r\n", 401),
        (b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n", 404),
        (b"PUT /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n", 405),
        (b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n", 405),
    ],
)
@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"], ids=["sent", "expected"])
async def test_a_refusal_waits_for_no_body(stage: Stage, raw: bytes, status: int, expect: bytes) -> None:
    wire = await stage.open()
    wire.send(raw + expect + b"\r\n")
    found, headers, _ = await wire.one()  # the first, and no interim one
    assert (found, headers["connection"]) == (status, "close")


async def test_a_body_over_the_limit_is_refused_before_it_comes(stage: Stage) -> None:
    wire = await stage.open()
    wire.send(wire.head(f"Content-Length: {stage.router.body_bytes + 1}", "Expect: 100-continue"))
    assert (await wire.one())[0] == 413
    wire = await stage.open()
    wire.send(wire.head(f"Content-Length: {stage.router.body_bytes}", "Expect: 100-continue"))
    assert (await wire.one())[0] == 100


async def test_a_chunked_body_over_the_limit_is_refused(stage: Stage) -> None:
    stage.router.body_bytes = 100_000
    wire = await stage.open()
    wire.send(wire.head("Transfer-Encoding: chunked") + (b"1000\r\n" + b"x" * 4096 + b"\r\n") * 1000)
    assert (await wire.answer())[0] == 413  # and it can be read, though megabytes of the body were not
    assert await wire.end() == b""


async def test_a_client_that_expects_is_told_to_send(stage: Stage) -> None:
    await stage.engine()
    wire = await stage.open()
    wire.send(wire.head("Content-Length: " + SIZE.decode(), "Expect: 100-continue"))
    assert (await wire.one())[0] == 100
    wire.send(BODY)
    assert (await wire.one())[0] == 200


async def test_an_unknown_expectation_is_refused(stage: Stage) -> None:
    wire = await stage.open()
    wire.send(wire.head("Content-Length: 5", "Expect: wonders"))
    assert (await wire.one())[0] == 417


async def test_a_pipelined_request_is_told_to_send_in_its_turn(stage: Stage) -> None:
    go = asyncio.Event()

    async def script(heard: Any, writer: Any) -> None:
        await go.wait()
        writer.write(whole(json.dumps(ANSWER).encode()))

    engine = await stage.engine(script)
    wire = await stage.open()
    wire.post(CHAT)
    wire.send(wire.head("Content-Length: " + SIZE.decode(), "Expect: 100-continue"))
    await until(lambda: engine.heard, "the first request")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wire.reader.read(1), 0.1)
    go.set()
    assert (await wire.one())[0] == 200
    assert (await wire.one())[0] == 100
    wire.send(BODY)
    assert (await wire.one())[0] == 200


async def test_what_waits_behind_a_request_is_bounded(stage: Stage) -> None:
    async def script(heard: Any, writer: Any) -> None:
        await asyncio.Event().wait()

    engine = await stage.engine(script)
    wire = await stage.open()
    wire.post(CHAT)
    await until(lambda: engine.heard, "the first request")
    wire.send(wire.head(f"Content-Length: {stage.router.body_bytes}"))
    for _ in range(60):
        wire.send(bytes(2**20))
    with pytest.raises(TimeoutError):
        await wait(wire.writer.drain(), 0.2)
    held = sum(len(request.body) for each in stage.router.clients for request in each._requests)
    assert held <= client.AHEAD_BYTES + 2**18


async def test_many_pipelined_requests_are_answered_in_order(stage: Stage) -> None:
    async def script(heard: Any, writer: Any) -> None:
        await asyncio.sleep(0.002 if b'"slow"' in heard.body else 0)
        writer.write(whole(heard.body))

    await stage.engine(script)
    wire = await stage.open()
    bodies = [CHAT | {"user": str(n), "slow": n % 3 == 0} for n in range(60)]
    for n, body in enumerate(bodies):
        wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") if n % 7 == 0 else None
        wire.post(body)
    for n, body in enumerate(bodies):
        if n % 7 == 0:
            assert (await wire.answer())[2] == b"ok\n"
        assert json.loads((await wire.answer())[2]) == body


@pytest.mark.parametrize("begin", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["first", "in-the-same-read"])
@pytest.mark.parametrize("what", ["url", "header", "both"])
async def test_a_head_is_too_long_with_its_url(stage: Stage, begin: bytes, what: str) -> None:
    url, header = {"url": (40, 0), "header": (0, 40), "both": (20, 20)}[what]
    wire = await stage.open()
    head = b"GET /v1/models/%b HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n" % (b"u" * url * 1024, b"x" * header * 1024)
    wire.send(begin + head)
    if begin:
        assert (await wire.answer())[0] == 200
    assert (await wire.answer())[0] == 431


@pytest.mark.parametrize("what", [b"X: 1\r\n" * 64, b"x" * 1024], ids=["many", "one"])
async def test_trailers_have_a_limit_however_long_the_body_was(stage: Stage, what: bytes) -> None:
    await stage.engine()
    wire = await stage.open()
    body = json.dumps(CHAT | {"x": "x" * 2**20}).encode()
    wire.send(wire.head("Transfer-Encoding: chunked") + b"%x\r\n%b\r\n0\r\nX: " % (len(body), body))
    for _ in range(512 * 1024 // len(what)):
        wire.send(what)
    assert (await wire.answer())[0] == 400
    assert not stage.engines[0].heard
