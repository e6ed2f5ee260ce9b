"""What a client sees beside the answers of engines: paths, methods, CORS, errors in its own shape."""

import datetime
import json
import zlib
from typing import Any

import pytest

from routing.keys import Denied, authenticate
from routing.table import RoutingTable, parse
from tests.routing.stage import CHAT, Heard, Stage, Wire, until

PAGE = "https://chat.example.org"


async def ask(wire: Wire, method: str, path: str, *headers: str, key: bool = True) -> tuple[int, dict[str, str], bytes]:
    head = wire.head(*headers, path=path).replace(b"POST", method.encode(), 1)
    wire.send(head if key else head.replace(b"Authorization", b"X-Nothing"))
    if method != "HEAD":
        return await wire.answer()
    raw = (await wire.reader.readuntil(b"\r\n\r\n")).decode()
    line, *rest = raw.strip().split("\r\n")
    return int(line.split()[1]), {k.lower(): v for k, _, v in (row.partition(": ") for row in rest)}, b""


async def test_head_is_get_without_a_body(stage: Stage) -> None:
    wire = await stage.open()
    for path in ("/v1/models", "/v1/models/m", "/healthz", "/readyz", "/metrics", "/v1/models/none", "/nowhere"):
        status, _, body = await ask(wire, "GET", path)
        found, headers, _ = await ask(wire, "HEAD", path)
        assert found == status
        assert path == "/metrics" or int(headers["content-length"]) == len(body)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("DELETE", "/v1/models/m", 405, "GET, HEAD"),
        ("POST", "/v1/models", 405, "GET, HEAD"),
        ("GET", "/", 404, None),
        ("GET", "/favicon.ico", 404, None),
        ("POST", "/v2/Chat", 404, None),
        ("OPTIONS", "/v1/chat/completions", 204, "POST, OPTIONS"),
        ("OPTIONS", "/v1/models", 204, "GET, HEAD, OPTIONS"),
    ],
)
async def test_methods(stage: Stage, method: str, path: str, status: int, allow: str | None) -> None:
    wire = await stage.open()
    found, headers, body = await ask(wire, method, path, key=False)
    assert (found, headers.get("allow")) == (status, allow)
    assert status == 204 or json.loads(body)["error"]["message"].startswith("cannot ")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/rerank",
        "/rerank",
        "/v2/rerank",
        "/v1/score",
        "/score",
        "/tokenize",
        "/detokenize",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/images/generations",
        "/v1/audio/speech",
    ],
)
async def test_every_path_that_carries_a_model_is_served(stage: Stage, path: str) -> None:
    engine = await stage.engine()
    wire = await stage.open()
    wire.post(CHAT, path=path)
    assert (await wire.answer())[0] == 200
    assert engine.heard[0].line == f"POST {path} HTTP/1.1"


async def test_a_model_with_a_slash_in_its_name(stage: Stage) -> None:
    stage.model = "org/name"
    await stage.engine()
    wire = await stage.open()
    for path in ("/v1/models/org/name", "/v1/models/org%2Fname"):
        status, _, body = await ask(wire, "GET", path)
        assert (status, json.loads(body)["id"]) == (200, "org/name")


# -- CORS -------------------------------------------------------------------------------------------------------------

PREFLIGHT = (f"Origin: {PAGE}", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: x-a, x-b")


async def test_without_the_setting_no_page_may_read(stage: Stage) -> None:
    await stage.engine()
    wire = await stage.open()
    _, preflight, _ = await ask(wire, "OPTIONS", "/v1/chat/completions", *PREFLIGHT, key=False)
    wire.post(CHAT, f"Origin: {PAGE}")
    _, answer, _ = await wire.answer()
    assert not [name for name in preflight | answer if name.startswith("access-control-")]


@pytest.mark.parametrize("allowed", [PAGE.encode(), b"*"])
async def test_a_page_that_is_allowed_may_read(allowed: bytes) -> None:
    async with Stage(cors=(b"https://other", allowed)) as stage:
        await stage.engine()
        wire = await stage.open()
        status, headers, _ = await ask(wire, "OPTIONS", "/v1/chat/completions", *PREFLIGHT, key=False)
        assert (status, headers["access-control-allow-origin"]) == (204, PAGE)
        assert (headers["access-control-allow-methods"], headers["access-control-allow-headers"]) == (
            "POST, OPTIONS",
            "x-a, x-b",
        )
        for key in (None, "wrong"):  # a refusal can be read, too
            wire.send(wire.head(f"Origin: {PAGE}", "Content-Length: 13", key=key) + b'{"model":"m"}')
            assert (await wire.answer())[1]["access-control-allow-origin"] == PAGE


async def test_a_page_that_is_not_allowed_may_not_read() -> None:
    async with Stage(cors=(b"https://other",)) as stage:
        wire = await stage.open()
        _, headers, _ = await ask(wire, "OPTIONS", "/v1/chat/completions", *PREFLIGHT, key=False)
        assert "access-control-allow-origin" not in headers


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
@pytest.mark.parametrize("length", [True, False], ids=["length", "chunked"])
async def test_an_engine_that_refuses_the_routers_key_is_no_401(stage: Stage, status: str, length: bool) -> None:
    async def script(heard: Heard, writer: Any) -> None:
        body = b'{"error":"inner secret"}'
        framed = b"Content-Length: 24\r\n\r\n" + body
        if not length:
            framed = b"Transfer-Encoding: chunked\r\n\r\n18\r\n" + body + b"\r\n0\r\n\r\n"
        writer.write(f"HTTP/1.1 {status}\r\n".encode() + framed)

    await stage.engine(script)
    wire = await stage.open()
    for _ in range(2):
        wire.post(CHAT)
        found, _, body = await wire.answer()
        assert (found, b"secret" in body) == (502, False)
    await until(lambda: len(stage.usage) == 2, "the usage rows")
    assert {row["status"] for row in stage.usage} == {502}


async def test_errors_come_in_the_shape_of_the_clients_api(stage: Stage) -> None:
    wire = await stage.open()
    wire.post({"model": "none"}, path="/v1/messages")
    status, _, body = await wire.answer()
    assert (status, json.loads(body)["type"], json.loads(body)["error"]["type"]) == (404, "error", "not_found_error")
    wire.post({"model": "none"})
    status, _, body = await wire.answer()
    assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")


# -- the table --------------------------------------------------------------------------------------------------------


async def test_ready_only_with_a_table(stage: Stage) -> None:
    wire = await stage.open()
    assert (await ask(wire, "GET", "/readyz"))[0] == 200
    table, stage.router.table = stage.router.table, RoutingTable(keys_complete=False, loaded=False)
    assert (await ask(wire, "GET", "/readyz"))[0] == 503
    stage.router.table = table
    assert (await ask(wire, "GET", "/readyz"))[0] == 200


async def test_what_left_the_table_leaves_the_books(stage: Stage) -> None:
    engine = await stage.engine()
    wire = await stage.open()
    wire.post(CHAT)
    assert (await wire.answer())[0] == 200
    assert set(stage.router.loads) == {"e0"}
    stage.router.table = RoutingTable()
    assert not stage.router.loads
    await until(engine.gone.is_set, "the end of the idle connection")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("2027-01-01", (2027, 1, 1, 0)),
        ("2027-01-01T05:00:00", (2027, 1, 1, 5)),
        ("2027-01-01T05:00:00Z", (2027, 1, 1, 5)),
        ("2027-01-01T05:00:00+02:00", (2027, 1, 1, 3)),
    ],
)
def test_a_keys_end_is_utc(given: str, wanted: tuple[int, int, int, int]) -> None:
    row = {"name": "n", "prefix": "k3v9x2mq", "sha256": "0" * 64, "expires": given}
    keys = parse({"version": 1, "keys": [row]}).keys
    assert keys["k3v9x2mq"].expires == datetime.datetime(*wanted, tzinfo=datetime.UTC)
    assert authenticate(keys, "llmgw_k3v9x2mq_x", datetime.datetime.now(datetime.UTC)) is Denied.UNKNOWN


async def test_a_key_with_a_date_is_served_and_then_expires() -> None:
    for expires, status in (("2999-01-01", 200), ("2020-01-01", 401)):
        async with Stage(expires=expires) as stage:
            await stage.engine()
            wire = await stage.open()
            wire.post(CHAT)
            assert (await wire.answer())[0] == status


@pytest.mark.parametrize("size", [10_000, 2**20])
async def test_a_long_name_is_not_said_again(stage: Stage, size: int) -> None:
    lines: list[Any] = []
    stage.router._on_line = lines.append
    await stage.engine()
    wire = await stage.open()
    wire.post({"model": "n" * size})
    status, _, body = await wire.answer()
    assert (status, len(body) < 500) == (404, True)
    for method in ("GET", "DELETE", "POST"):
        for path in ("models/", "", "a" * 200):
            wire = await stage.open()
            wire.send(
                wire.head("Content-Length: 0", path=f"/v1/{path}{'p' * 10_000}").replace(b"POST", method.encode())
            )
            status, _, body = await wire.answer()
            assert (status in (404, 405), len(body) < 500) == (True, True)
    assert all(len(line.path) <= 200 for line in lines)


async def test_a_key_that_may_not_is_told_so_shortly() -> None:
    async with Stage(may=["other"]) as stage:
        stage.model = "m" * 10_000
        await stage.engine()
        wire = await stage.open()
        wire.post({"model": stage.model})
        status, _, body = await wire.answer()
        assert (status, len(body) < 500) == (403, True)


async def test_a_body_in_another_encoding_is_refused_by_its_name(stage: Stage) -> None:
    wire = await stage.open()
    wire.post(zlib.compress(b'{"model": "m"}'), "Content-Encoding: deflate")
    status, _, body = await wire.answer()
    text = "cannot read the request: Content-Encoding deflate is not taken; send JSON as it is"
    assert (status, json.loads(body)["error"]["message"]) == (400, text)
