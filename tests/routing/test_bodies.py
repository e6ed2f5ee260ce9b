"""A body reaches the engine byte for byte as it came, but for what the router must change in it."""

import asyncio
import contextlib
import gzip
import json
import time
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain import affinity, openai
from tests.routing.stage import CHAT, Stage, until

BLANK = st.text(" \t\r\n", max_size=3)


@st.composite
def spelled(draw: Any, value: Any) -> str:
    """A JSON text of the value as some client may write it: blanks, escapes, figures with noughts at the end."""
    if isinstance(value, dict):
        rows = [
            f"{draw(BLANK)}{draw(spelled(k))}{draw(BLANK)}:{draw(BLANK)}{draw(spelled(v))}" for k, v in value.items()
        ]
        return "{" + ",".join(rows) + draw(BLANK) + "}"
    if isinstance(value, list):
        return "[" + ",".join(draw(BLANK) + draw(spelled(each)) + draw(BLANK) for each in value) + "]"
    if isinstance(value, str):
        if value.isascii() and draw(st.booleans()):
            return '"' + "".join(f"\\u{ord(c):04x}" for c in value) + '"'
        return json.dumps(value)
    return json.dumps(value) + ("0" if isinstance(value, float) and "e" not in repr(value) else "")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6)


@given(st.data(), st.dictionaries(st.text(max_size=8), VALUES, max_size=4), st.integers(0, 4))
def test_only_the_models_name_changes(data: Any, more: dict[str, Any], at: int) -> None:
    rows = [(k, v) for k, v in more.items() if k not in ("model", "stream", "stream_options")]
    rows.insert(at, ("model", "old"))
    body = data.draw(spelled(dict(rows))).encode()
    renamed = bytes(openai.rename(body, 'new "one"'))
    start, end = openai.members(body)["model"]
    assert renamed == body[:start] + b'"new \\"one\\""' + body[end:]
    assert json.loads(renamed) == dict(rows) | {"model": 'new "one"'}


@given(st.data(), st.sampled_from([None, {}, {"include_usage": False}, {"a": 1.5}, {"b": [], "include_usage": None}]))
def test_usage_is_asked_for_and_nothing_else_is_touched(data: Any, options: Any) -> None:
    content = {"model": "m", "temperature": 1.1, "stream": True, "stream_options": options, "messages": [{}]}
    body = data.draw(spelled(content)).encode() + b" \n"
    changed, added = openai.ask_usage(body, "/v1/chat/completions", openai.read(body))
    assert added
    assert json.loads(bytes(changed)) == content | {"stream_options": (options or {}) | {"include_usage": True}}
    start, end = openai.members(body)["stream_options"]
    assert bytes(changed).startswith(body[:start])
    assert bytes(changed).endswith(body[end:])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"model"',
        b"model=m",
        b'{"messages":[]}',
        b'{"model":5}',
        b'{"model":null}',
        b'{"model":"m"}{"model":"n"}',
        b'{"model":"m",}',
        b'\xef\xbb\xbf{"model":"m"}',
        '{"model":"m"}'.encode("utf-16"),
        b'{"model":"m\xff"}',
        b'{"model":"m","model":"n"}',
        b'{"model":"m","model":"m"}',
        b'{"model":"m","mod\\u0065l":"n"}',
        b'{"\\u006dodel":"m","model":"n"}',
        b'{"a":1,"model":"m","a":1,"mo\\u0064el":"m"}',
        b'{"model":"m","x":[{"model":1}],"model":"n"}',
        b'{"model":"m","x":"' + b"x" * 10_000 + b'","model":"n"}',
        b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"m","x":' + b'{"x":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b"[" * 100_000,
        b'{"model":"m","stream":true,"stream":false}',
        b'{"model":"m","stream":true,"str\\u0065am":false}',
        b'{"model":"m","stream_options":null,"stream_options":{}}',
        b'{"model":"m","stream":true,"stream_options":{"include_usage":false,"include_usage":false}}',
        b'{"model":"m","stream":true,"stream_options":{"include_usage":true,"include_us\\u0061ge":false}}',
        b'{"model":"m","x":1,"x":1,"stream":true,"stream_options":null}',
        b'{"model":"m","stream":true,"stream_options":[]}',
        b'{"model":"m",' + b",".join(b'"%d":1' % n for n in range(5000)) + b"}",
        b'{"model":"m","stream_options":{' + b",".join(b'"%d":1' % n for n in range(openai.MOST_NAMES + 1)) + b"}}",
        b'{"model":"m","' + b"x" * (openai.NAME_LETTERS + 1) + b'":1,"x":"' + b"x" * 10_000 + b'"}',
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)
def test_a_body_that_can_be_read_in_two_ways_is_refused(body: bytes) -> None:
    with pytest.raises(openai.BadRequest, match=r"^cannot "):
        openai.read(body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "it has no body"),
        (b" \n", "it has no body"),
        (gzip.compress(b'{"model": "m"}', mtime=0), "neither compressed"),
        (zlib.compress(b'{"model": "m"}'), "it is no text|is malformed"),
        (b"\x28\xb5\x2f\xfd\x00", "is malformed"),
        (b"\xff\xfe{", "its body is no text"),
        (b'{"model": "\\ud800"}', "half of a surrogate pair"),
        (b'{"model": "x", "messages": ["\\ud800"], "a": 1}', "half of a surrogate pair"),
        (b'{"model": "\\ud800", "x": [1]', "half of a surrogate pair"),
        (b'{"model": "m", "x": "', "its JSON ends too early"),
        (b"{}", "it names no model"),
        (b"[1]", "Expected `object`, got `array`"),
    ],
)
def test_what_is_wrong_with_a_body_is_said_in_words(body: bytes, why: str) -> None:
    with pytest.raises(openai.BadRequest, match=f"^cannot read the request: .*({why})"):
        openai.read(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m"}',
        b' { "model" : "m" } ',
        b'{"messages":[{"content":"\\"model\\""}],"model":"m"}',
        b'{"tools":[{"model":1,"x":{"model":2}}],"model":"m"}',
        b'{"x":"\\u0065\\u006d","model":"m"}',
        b'{"mod\\u0065l":"m"}',
        b'{"x":"' + b"x" * 10_000 + b'","model":"m"}',
        b'{"model":"m","x":' + b"[" * 500 + b"]" * 500 + b"}",
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)
def test_what_looks_like_a_second_model_is_none(body: bytes) -> None:
    assert openai.read(body).model == "m"
    assert json.loads(bytes(openai.rename(body, "n")))["model"] == "n"


NAMES = st.sampled_from(["model", "stream", "stream_options", "x", "y"])
TEXTS = st.sampled_from(['"model"', '"stream_options"', "model", "a"]).map(json.dumps)
FLAGS = st.sampled_from([f'{{"include_usage":{flag}}}' for flag in ("false", "1e999", '""', "[]", "0", '"\\ud800"')])
FLAGS |= st.sampled_from(["true", "null", "{}", "{ }", '{"include_usage":false,"x":1,"x":1}', '{"x":"include_usage"}'])


@given(st.lists(st.tuples(NAMES, TEXTS | FLAGS), max_size=6), st.sampled_from([1, 8000, 10_000]))
def test_what_was_read_can_be_changed(rows: list[tuple[str, str]], filling: int) -> None:
    """An engine is chosen by then, and its connection taken: whatever is wrong with a body is said before."""
    rows = [("model", '"m"'), ("stream", "true"), *rows, ("z", json.dumps("z" * filling))]
    body = "{" + ",".join(f"{json.dumps(name)}: {value}" for name, value in rows) + "}"
    try:
        asked = openai.read(body.encode())
    except openai.BadRequest:
        return
    renamed = openai.rename(body.encode(), "new")
    changed = json.loads(bytes(openai.ask_usage(renamed, "/v1/chat/completions", asked)[0]))
    assert changed["model"] == "new"
    assert not asked.stream or changed["stream_options"]["include_usage"]


@pytest.mark.parametrize(
    "where", ["%s", '"stream_options":{%s}', '"messages":[{%s}]', '"x":[%s]', '"%s":1', '"x":"%s"']
)
def test_a_body_of_megabytes_costs_little_more_than_its_parsing(where: str) -> None:
    """All other requests of the process wait meanwhile."""
    piece = '"%d":1,' if "{" in where or where == "%s" else "%d,"
    inner = "".join(piece % n for n in range(500_000)).rstrip(",")
    body = ('{"model":"m","stream":true,' + where % inner + "}").encode()

    def read() -> None:
        with contextlib.suppress(openai.BadRequest):
            asked = openai.read(body)
            openai.ask_usage(openai.rename(body, "new"), "/v1/chat/completions", asked)
        affinity.beginnings("m", body)

    assert least_seconds(read) < 10 * least_seconds(lambda: msgspec.json.decode(body, type=msgspec.Raw))


def least_seconds(what: Callable[[], object]) -> float:
    """Of this thread's processor, so that what else runs here counts little."""
    taken = []
    for _ in range(3):
        began = time.thread_time()
        what()
        taken.append(time.thread_time() - began)
    return min(taken)


async def test_figures_are_passed_on_as_they_were_written(stage: Stage) -> None:
    engine = await stage.engine(model="inner")
    wire = await stage.open()
    rest = b'"temperature": 1.10, "seed": 12345678901234567890123, "stop": "\\u00e4"'
    wire.post(b'{"model": "m", "stream": true, "stream_options": {"x": 1.0}, ' + rest + b"}")
    assert (await wire.answer())[0] == 200
    usage = b'"stream_options": {"x": 1.0,"include_usage":true}, '
    assert engine.heard[0].body == b'{"model": "inner", "stream": true, ' + usage + rest + b"}"


async def test_secrets_and_the_connections_own_headers_reach_no_engine(stage: Stage) -> None:
    engine = await stage.engine(key="engine-secret")
    wire = await stage.open()
    own = ("Connection: keep-alive, X-Private, TE", "X-Private: a", "TE: trailers", "Keep-Alive: timeout=5")
    secrets = ("X-API-Key: b", "Cookie: session=c", "Proxy-Authorization: Basic d", "X-Request-Id: r1")
    wire.post(CHAT, *own, *secrets, "Accept-Encoding: gzip", "traceparent: 00-1-2-3", "X-Kept: e")
    assert (await wire.answer())[1]["x-request-id"] == "r1"
    heard = engine.heard[0].headers
    assert heard["authorization"] == "Bearer engine-secret"
    assert {"host", "content-length", "authorization", "x-request-id", "traceparent", "x-kept"} == set(heard)
    assert (heard["x-request-id"], heard["traceparent"]) == ("r1", "00-1-2-3")


async def test_an_engines_own_headers_reach_no_client(stage: Stage) -> None:
    async def script(heard: Any, writer: asyncio.StreamWriter) -> None:
        own = b"Connection: X-Inner\r\nX-Inner: 1\r\nKeep-Alive: timeout=9\r\nSet-Cookie: a=b\r\nX-Kept: 2\r\n"
        cross = b"Access-Control-Allow-Origin: *\r\nX-Request-Id: inner\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n" + own + cross + b"Content-Length: 2\r\n\r\n{}")

    await stage.engine(script)
    wire = await stage.open()
    wire.post(CHAT, "X-Request-Id: outer")
    _, headers, _ = await wire.answer()
    assert headers == {"x-kept": "2", "content-length": "2", "x-request-id": "outer"}


async def test_a_body_at_the_limit_is_passed_on_whole(stage: Stage) -> None:
    from routing.dataplane.messages import BODY_BYTES

    engine = await stage.engine()
    wire = await stage.open()
    body = b'{"model":"m","x":"' + b"x" * (BODY_BYTES - 20) + b'"}'
    assert len(body) == BODY_BYTES
    wire.post(body)
    assert (await wire.answer())[0] == 200
    assert engine.heard[0].body == body
    await until(lambda: stage.usage, "the usage row")
