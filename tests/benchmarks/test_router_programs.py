"""The router benchmark's own programs count the same things."""

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.router import programs

CORES = os.sched_getaffinity(0)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if not programs.available() and not os.environ.get("CI"):
        pytest.skip("needs gcc")
    return programs.build(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def engine(built: tuple[Path, Path]) -> Iterator[programs.Engine]:
    engine = programs.Engine(built[0], CORES)
    yield engine
    engine.close()


def stats(engine: programs.Engine) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{engine.port}/stats") as answer:
        return json.load(answer)


def load(built: tuple[Path, Path], engine: programs.Engine, mode: str, *args: object) -> dict[str, Any]:
    return programs.load(built[1], CORES, mode, engine.port, "key", *args)


def test_closed_loop_counts_what_the_engine_counts(built, engine):
    figures = load(built, engine, "closed", 8, 0.2)
    assert figures["errors"] == figures["reconnects"] == 0
    # Besides: those before the window opens, and one on each connection when it closes.
    assert 0 < figures["requests"] <= stats(engine)["requests"] - 8
    assert figures["p50_us"] <= figures["p99_us"]


def test_streams_come_at_the_rate_that_was_asked_for(built, engine):
    figures = load(built, engine, "streams", 20, 0.5, 20_000)
    assert figures["errors"] == 0
    assert figures["streams"] == 20
    assert 0 < figures["chunks"] <= 20 * 0.5 * 50 * 1.1  # never faster; slower on a busy machine
    assert figures["probes"] > 0
    seen = stats(engine)
    assert seen["open"] == 0
    assert figures["chunks"] < seen["chunks"]


def test_whole_answer_has_its_events_usage_and_end(engine):
    body = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "chunks=3 bytes=7 gap_us=1000"}],
    }
    url = f"http://127.0.0.1:{engine.port}/v1/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as answer:
        *events, last, rest = answer.read().decode().split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert [c["choices"][0]["delta"].get("content") for c in chunks[:4]] == ["x" * 7] * 3 + [None]
    assert chunks[4]["usage"]["completion_tokens"] == 3
    assert stats(engine)["chunks"] == 3


def test_client_that_leaves_or_stalls_is_seen_by_the_engine(built, engine):
    figures = load(built, engine, "leave", engine.port, 3, 60_000_000)
    assert figures["missed"] == 0
    assert stats(engine)["left"] == 3
    stalled = load(built, engine, "stall", engine.port, 0.1)
    assert 0 < stalled["ahead_bytes"] < 50_000_000  # what the kernel's buffers take, far from the 330 MB of the whole
