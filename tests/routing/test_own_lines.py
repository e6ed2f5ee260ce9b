"""Heads that differ in ids, traces and addresses alone are judged once, and each request keeps its own."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain import http1
from tests.routing.stage import CHAT, Stage

TRACE = "traceparent: 00-{:032x}-00f067aa0ba902b7-01"
NAMES = [
    "traceparent",
    "Traceparent",
    "X-Request-ID",
    "baggage",
    "B3",
    "X-Forwarded-For",
    "Accept",
    "X-Title",
    "Cookie",
]
VALUES = ["a", "a b", "00-1-2-03", "  a", "a ", "\ta", "é", "", "x" * 200]
Lines = list[tuple[str, str]]
LINES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=5)


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b"GET /\r\nA: b\r\nTraceParent: 1-2", (b"GET /\r\nA: b", {b"traceparent": b"1-2"})),
        (b"GET /\r\nX-Request-Id: a b\r\nb3: c\r\nA: b", (b"GET /\r\nA: b", {b"x-request-id": b"a b", b"b3": b"c"})),
        (b"GET /\r\nA: b", None),
        (b"GET /\r\nb3: c\r\nB3: c", None),
        (b"GET /\r\nb3: c\r\n d", None),  # the value goes on in the next line
        (b"GET /\r\nb3:  c", None),
        (b"GET /\r\nb3: c ", None),
        (b"GET /\r\nb3: ", None),
        (b"GET /\r\nb3: \xc3\xa9", None),
        (b"GET /\r\nb3: c\nd: e", None),
        (b"GET /\r\nb3x: c", None),
        (b"GET /b3: c", None),
    ],
)
def test_the_lines_of_one_request(head: bytes, found: tuple[bytes, dict[bytes, bytes]] | None) -> None:
    assert http1.without_own(head) == found


async def test_requests_with_traces_of_their_own_share_a_head(stage: Stage) -> None:
    engine = await stage.engine()
    wire = await stage.open()
    for number in range(20):
        wire.post(CHAT, TRACE.format(number), f"X-Request-ID: mine-{number}", "X-Title: t")
        status, headers, _ = await wire.answer()
        assert (status, headers["x-request-id"]) == (200, f"mine-{number}")
    wire.post(CHAT, TRACE.format(99), "X-Title: t")
    assert (await wire.answer())[1]["x-request-id"] not in ("", "mine-0")
    assert len(stage.router.heads) == 1
    for number, heard in enumerate(engine.heard[:20]):
        assert heard.headers["traceparent"] == TRACE.format(number).partition(": ")[2]
        assert heard.headers["x-request-id"] == f"mine-{number}"
        assert heard.headers["x-title"] == "t"
    assert engine.heard[20].headers["x-request-id"] != "mine-19"


async def test_a_request_without_them_follows_one_with_them(stage: Stage) -> None:
    engine = await stage.engine()
    wire = await stage.open()
    for lines in ([TRACE.format(1), "X-Request-ID: mine"], [], ["baggage: b"], []):
        wire.post(CHAT, *lines)
        assert (await wire.answer())[0] == 200
    assert len(stage.router.heads) == 1
    assert ["traceparent" in heard.headers for heard in engine.heard] == [True, False, False, False]
    assert ["baggage" in heard.headers for heard in engine.heard] == [False, False, True, False]
    assert all(heard.headers["x-request-id"] != "mine" for heard in engine.heard[1:])


async def test_an_id_that_is_too_long_is_none_there_too(stage: Stage) -> None:
    await stage.engine()
    wire = await stage.open()
    for length in (1, 128, 129):
        wire.post(CHAT, "X-Request-ID: " + "i" * length)
        given = (await wire.answer())[1]["x-request-id"]
        assert (given == "i" * length) == (length <= 128)


async def test_a_line_that_belongs_to_the_connection_alone_goes_no_further(stage: Stage) -> None:
    engine = await stage.engine()
    wire = await stage.open()
    for number in range(3):
        wire.post(CHAT, TRACE.format(number), "Connection: keep-alive, traceparent")
        assert (await wire.answer())[0] == 200
    assert not any("traceparent" in heard.headers for heard in engine.heard)


async def test_sessions_stick_by_a_line_of_their_own() -> None:
    async with Stage(sticky="X-Correlation-ID") as stage:
        engines = [await stage.engine() for _ in range(3)]
        wire = await stage.open()
        for number in range(48):
            wire.post(CHAT, f"X-Correlation-ID: {number % 12}", TRACE.format(number))
            assert (await wire.answer())[0] == 200
        assert len(stage.router.heads) == 1
        sessions = [{heard.headers["x-correlation-id"] for heard in engine.heard} for engine in engines]
        assert len([each for each in sessions if each]) > 1
        assert sum(len(each) for each in sessions) == 12


@given(st.lists(LINES, min_size=2, max_size=4))
def test_engines_and_clients_get_what_they_would_without_any_memory(requests: list[Lines]) -> None:
    assert asyncio.run(_served(requests, remembering=True)) == asyncio.run(_served(requests, remembering=False))


async def _served(requests: list[Lines], *, remembering: bool) -> list[object]:
    """The statuses, and what an engine heard but for the ids that were made here."""
    async with Stage() as stage:
        engine = await stage.engine()
        wire = await stage.open()
        told: list[object] = []
        for lines in requests:
            if not remembering:
                stage.router.heads.clear()
            wire.post(CHAT, *(f"{name}: {value}" for name, value in lines))
            status, headers, _ = await wire.answer()
            heard, id_ = engine.heard[-1].headers, headers["x-request-id"]
            assert heard.pop("x-request-id") == id_
            told.append((status, "made here" if len(id_) == 32 else id_, heard | {"host": ""}))
        return told
