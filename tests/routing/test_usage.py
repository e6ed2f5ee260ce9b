"""Usage is what the engine said, in each of the shapes that engines speak."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain import sse
from routing.domain.sse import EVENT_BYTES, SseReader
from routing.domain.usage import Facts, WholeReader, read_event
from tests.routing.stage import Heard, Stage, chunk, stream_head, until, whole

MESSAGES = [
    {
        "type": "message_start",
        "message": {"id": "a", "content": [], "usage": {"input_tokens": 25, "output_tokens": 1}},
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 'Hello "usage"'}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "!"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}},
    {"type": "message_stop"},
]
CACHED = [
    {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 1, "cache_read_input_tokens": 41, "cache_creation_input_tokens": None}},
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "!"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}},
]
RESPONSES = [
    {"type": "response.created", "response": {"id": "r", "status": "in_progress", "error": None, "usage": None}},
    {"type": "response.output_text.delta", "delta": "Hi.delta"},
    {"type": "response.output_text.delta", "delta": " there"},
    {"type": "response.output_text.done", "text": "Hi.delta there"},
    {
        "type": "response.completed",
        "response": {
            "id": "r",
            "error": None,
            "output": [{"usage": {"input_tokens": 1}}],
            "usage": {"input_tokens": 37, "output_tokens": 11, "total_tokens": 48},
        },
    },
]


def events(*data: Any) -> list[bytes]:
    return [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in data]


def streamed(*pieces: bytes, cut: bool = False) -> Any:
    async def script(heard: Heard, writer: Any) -> None:
        writer.write(stream_head() + b"".join(map(chunk, pieces)))
        if cut:
            writer.close()
        else:
            writer.write(b"0\r\n\r\n")

    return script


async def row(stage: Stage, path: str, **more: Any) -> dict[str, Any]:
    wire = await stage.open()
    wire.post({"model": "m", **more}, path=path)
    await until(lambda: stage.usage, "the usage row")
    return stage.usage[0]


@pytest.mark.parametrize(
    ("path", "told", "wanted"),
    [
        ("/v1/messages", MESSAGES, (25, 15)),
        ("/v1/messages", CACHED, (42, 15)),
        ("/v1/responses", RESPONSES, (37, 11)),
    ],
    ids=["messages", "cached", "responses"],
)
async def test_usage_of_a_stream(stage: Stage, path: str, told: Any, wanted: tuple[int, int]) -> None:
    await stage.engine(streamed(*events(*told)))
    found = await row(stage, path, stream=True)
    assert (found["prompt_tokens"], found["completion_tokens"], found["completed"]) == (*wanted, True)


@pytest.mark.parametrize(
    ("path", "told", "prompt"),
    [("/v1/messages", MESSAGES[:5], 25), ("/v1/responses", RESPONSES[:3], None)],
    ids=["messages", "responses"],
)
async def test_a_cut_stream_counts_what_was_seen(stage: Stage, path: str, told: Any, prompt: int | None) -> None:
    await stage.engine(streamed(*events(*told), cut=True))
    found = await row(stage, path, stream=True)
    assert (found["prompt_tokens"], found["completion_tokens"], found["completed"]) == (prompt, 2, False)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_usage_of_a_whole_answer(stage: Stage, path: str) -> None:
    answer = {"output": [{"text": "\n\n"}], "usage": {"input_tokens": 7, "output_tokens": 5}}

    async def script(heard: Heard, writer: Any) -> None:
        writer.write(whole(json.dumps(answer, indent=2).encode()))

    await stage.engine(script)
    found = await row(stage, path)
    assert (found["prompt_tokens"], found["completion_tokens"], found["completed"]) == (7, 5, True)


async def test_a_failed_response_is_not_complete(stage: Stage) -> None:
    failed = {"type": "response.failed", "response": {"error": {"code": "server_error"}, "usage": None}}
    await stage.engine(streamed(*events(RESPONSES[0], failed)))
    assert (await row(stage, "/v1/responses", stream=True))["completed"] is False


@pytest.mark.parametrize("pause", [1000, 70_000, 10**7])
def test_usage_of_a_long_answer_stands_at_its_end(pause: int) -> None:
    """As of embeddings: some megabytes of figures, then the usage."""
    reader = WholeReader()
    answer = {"model": '"usage": {"prompt_tokens": 9}', "usage": {"prompt_tokens": 1}, "data": [0.25] * 400_000}
    body = json.dumps({**answer, "usage": None} | {"object": "list"})[:-1].encode()
    body += b', "usage": {"prompt_tokens": 7, "total_tokens": 7, "details": {"cached_tokens": 3}}, "more": "usage"}'
    assert len(body) > 2_000_000
    passed = b"".join(reader.feed(body[at : at + pause]) for at in range(0, len(body), pause)) + reader.finish()
    assert passed == body
    assert (reader.facts.prompt_tokens, reader.facts.completion_tokens) == (7, None)


@pytest.mark.parametrize("end", [b"", b'"usage":', b'"usage": {"prompt_tokens"', b'"usage": [1]', b"\xff\xfe"])
def test_a_long_answer_without_figures_has_none(end: bytes) -> None:
    reader = WholeReader()
    assert reader.feed(bytes(1_200_000) + end)
    reader.finish()
    assert reader.facts == Facts()


@pytest.mark.parametrize("bad", [-1, True, "5", 1.5, None, [1]], ids=repr)
def test_a_figure_that_is_none_stays_none(bad: Any) -> None:
    reader = SseReader(path="/v1/completions")
    reader.feed(b"data: " + json.dumps({"choices": [], "usage": {"prompt_tokens": bad}}).encode() + b"\n\n")
    assert reader.facts.prompt_tokens is None


@given(st.data(), st.sampled_from(["/v1/messages", "/v1/responses"]), st.booleans())
def test_reads_and_line_ends_do_not_matter(data: Any, path: str, dos: bool) -> None:
    told = b"".join(events(*(MESSAGES if path == "/v1/messages" else RESPONSES)))
    told = told.replace(b"\n", b"\r\n") if dos else told
    reader, out = SseReader(path=path), b""
    while told:
        cut = data.draw(st.integers(1, len(told)))
        out += reader.feed(told[:cut])
        told = told[cut:]
    reader.finish()
    facts = reader.facts
    wanted = (25, 15, 2) if path == "/v1/messages" else (37, 11, 2)
    assert (facts.prompt_tokens, facts.completion_tokens, facts.events) == wanted


def test_an_event_without_end_does_not_fill_the_memory() -> None:
    reader = SseReader(path="/v1/completions", strip_usage=True)
    piece, passed = b"data: " + b"x" * 2**20, 0
    for _ in range(20):
        passed += len(reader.feed(piece))
    assert passed >= 11 * len(piece)
    assert passed + len(reader.finish()) == 20 * len(piece)


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("size", [EVENT_BYTES - 70_000, EVENT_BYTES - 10, EVENT_BYTES + 1, 10 * 2**20])
@pytest.mark.parametrize("piece", [65_536, 2**20 + 1])
def test_of_an_event_that_is_too_large_the_usage_at_its_end_counts(size: int, piece: int, strip: bool) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 77}
    large = json.dumps({"choices": [{"delta": {"content": "x" * size}}], "usage": usage}).encode()
    after = b'data: {"choices":[{"delta":{"content":"y"}}]}\n\ndata: [DONE]\n\n'
    whole = b"data: " + large + b"\n\n" + after
    reader = SseReader(path="/v1/chat/completions", strip_usage=strip)
    passed = b"".join(reader.feed(whole[at : at + piece]) for at in range(0, len(whole), piece)) + reader.finish()
    assert passed == whole
    facts = reader.facts
    assert (facts.prompt_tokens, facts.completion_tokens, facts.events, facts.done) == (7, 77, 2, True)
    assert reader.between_events


def test_of_an_event_that_is_too_large_and_never_ends_its_last_words_count() -> None:
    reader = SseReader(path="/v1/chat/completions")
    reader.feed(b'data: {"choices": [], "x": "')
    for _ in range(20):
        reader.feed(b"x" * 2**20)
    reader.feed(b'", "usage": {"prompt_tokens": 7, "completion_tokens": 77}}')
    reader.finish()
    assert (reader.facts.prompt_tokens, reader.facts.completion_tokens) == (7, 77)


# -- what an engine may send without end ------------------------------------------------------------------------------


class Counted:
    """A pattern that counts the bytes it goes over."""

    def __init__(self, pattern: Any) -> None:
        self._pattern, self.went_over = pattern, 0

    def search(self, buffer: bytearray, begin: int) -> Any:
        found = self._pattern.search(buffer, begin)
        self.went_over += (found.end() if found else len(buffer)) - begin
        return found


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"", b"data: 1\n\n" * 400 + b"\r"),
        (b"", b"data: 1\n\ndata: 2\r\n\r\n" * 200),
        (b"data: \r", b"x" * 10),
        (b"\r", b"\r"),
    ],
    ids=["a-return-at-the-end", "both-line-ends", "an-event-in-small-pieces", "returns"],
)
def test_each_byte_of_a_stream_is_gone_over_once(
    monkeypatch: pytest.MonkeyPatch, begin: bytes, piece: bytes, strip: bool
) -> None:
    monkeypatch.setattr(sse, "_END", counted := Counted(sse._END))
    reader, size = SseReader(strip_usage=strip), 0
    passed = reader.feed(begin)
    for _ in range(200):
        passed += reader.feed(piece)
        size += len(piece)
    assert passed + reader.finish() == begin + piece * 200
    assert counted.went_over <= 2 * size


@pytest.mark.parametrize("blank", [b"\n", b"\r\n"])
def test_a_flood_of_blank_lines_is_one_event(monkeypatch: pytest.MonkeyPatch, blank: bytes) -> None:
    looked: list[bytes] = []
    monkeypatch.setattr(SseReader, "_look", lambda self, event: bool(looked.append(event)))
    reader = SseReader(strip_usage=True)
    assert reader.feed(blank * 50_000) == blank * 50_000
    assert len(looked) <= 2


def test_what_an_event_holds_besides_its_usage_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    decode = msgspec.json.decode
    monkeypatch.setattr(msgspec.json, "decode", lambda raw: built.append(len(memoryview(raw))) or decode(raw))
    much = b"[" + b"[]," * 1_000_000 + b"[]]"
    for event in (
        b'{"usage":{"prompt_tokens":1,"completion_tokens":2},"choices":%b}',
        b'{"response":{"output":%b,"usage":{"input_tokens":1,"output_tokens":2}}}',
        b'{"usage":{"prompt_tokens":1,"completion_tokens":2},"error":%b}',
    ):
        facts = Facts()
        assert not read_event(event % much, facts)
        assert (facts.prompt_tokens, facts.completion_tokens) == (1, 2)
        assert facts.failed == (b"error" in event)
    facts = Facts()
    assert not read_event(b'{"usage":%b}' % much, facts)
    assert facts == Facts()
    assert sum(built) < 10_000


@pytest.mark.parametrize("size", [1, 2, 200])
def test_an_answer_in_tiny_pieces_takes_no_more_memory_than_its_bytes(size: int) -> None:
    reader, piece = WholeReader(), b"x" * size
    tracemalloc.start()
    try:
        for _ in range(200_000 // size):
            reader.feed(bytes(memoryview(piece)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * 200_000


@pytest.mark.parametrize(
    ("usage", "prompt"),
    [
        ({"input_tokens": 3, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 9}, 42),
        ({"input_tokens": 42, "input_tokens_details": {"cached_tokens": 41}}, 42),
        ({"prompt_tokens": 42, "prompt_tokens_details": {"cached_tokens": 41}}, 42),
        ({"input_tokens": 42, "cache_read_input_tokens": "x"}, 42),
    ],
    ids=["messages", "responses", "chat", "no number"],
)
def test_what_came_from_the_cache_is_of_the_prompt_too(usage: dict[str, Any], prompt: int) -> None:
    reader = WholeReader()
    reader.feed(json.dumps({"usage": usage}).encode())
    reader.finish()
    assert reader.facts.prompt_tokens == prompt
