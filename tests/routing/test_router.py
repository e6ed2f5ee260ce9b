"""The router as its own process, without database or broker: streams, balance, keys, statuses, survival."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai as openai_client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain import openai
from routing.domain.sse import SseReader
from routing.keys import Denied, Key, authenticate, new_key
from routing.table import FRESH_SECONDS, mark_of
from tests.e2e.harness import ROOT, wait_for
from tests.support.ports import free_port

ECHO = str(ROOT / "agent_client" / "programs" / "echo_server.py")


class Run:
    """A router child over a routes file, and echo engines."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.routes = folder / "routes.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.key, prefix, sha256 = new_key()
        limited, prefix2, sha2 = new_key()
        self.limited = limited
        self.keys = [
            {"id": "1", "name": "all", "prefix": prefix, "sha256": sha256},
            {"id": "2", "name": "few", "prefix": prefix2, "sha256": sha2, "models": ["other"]},
        ]

    def engine(self, *knobs: str) -> tuple[int, subprocess.Popen[bytes]]:
        port = free_port()
        process = subprocess.Popen(
            [sys.executable, ECHO, "--port", str(port), *knobs], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        self.processes.append(process)
        wait_for(lambda: socket.create_connection(("127.0.0.1", port), 1).close() or True, "the engine")
        return port, process

    def write(self, ports: list[int], **more: Any) -> None:
        endpoints = [{"id": f"e{port}", "url": f"http://127.0.0.1:{port}"} for port in ports]
        model = {"name": "echo", "aliases": ["default"], "state": "ready", "endpoints": endpoints}
        down = {"name": "down", "state": "down", "reason": "0 of 3 nodes fit", "endpoints": []}
        data = {"version": 1, "revision": 1, "models": [model, down], "keys": self.keys, **more}
        self.routes.with_suffix(".new").write_text(json.dumps(data))
        self.routes.with_suffix(".new").replace(self.routes)

    def start(self) -> None:
        argv = [sys.executable, "-m", "routing.server", "--routes", str(self.routes)]
        argv += ["--listen", f"127.0.0.1:{self.port}", "--usage-dir", str(self.folder / "usage")]
        with (self.folder / "router.log").open("ab") as log:
            self.processes.append(subprocess.Popen(argv, cwd=ROOT, stderr=log, stdout=log))
        wait_for(lambda: socket.create_connection(("127.0.0.1", self.port), 1).close() or True, "the router")

    def ask(self, body: Any, key: str | None = None, path: str = "/v1/chat/completions") -> Any:
        headers = {"Authorization": f"Bearer {key or self.key}"}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers)
        return urllib.request.urlopen(request, timeout=20)

    def status(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, Any], Any]:
        try:
            with self.ask(*args, **kwargs) as answer:
                return answer.status, json.loads(answer.read()), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read()), error.headers

    def usage(self) -> list[dict[str, Any]]:
        files = sorted((self.folder / "usage").glob("*.ready"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def chat(words: str = "a b c", model: str = "echo", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": words}], **more}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    try:
        yield run
    finally:
        for process in run.processes:
            process.kill()
            process.wait()


def test_the_official_client_is_served(run: Run) -> None:
    run.write([run.engine()[0]])
    run.start()
    with openai_client.OpenAI(base_url=f"http://127.0.0.1:{run.port}/v1", api_key=run.key, max_retries=0) as client:
        use_client(client)
    rows = wait_for(lambda: len(rows := run.usage()) >= 4 and rows, "usage")
    assert [row["completion_tokens"] for row in rows[:3]] == [3, 3, 3]
    assert all(row["completed"] for row in rows[:3])


def use_client(client: openai_client.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"echo", "default", "down"}
    messages: Any = [{"role": "user", "content": "hello big world"}]
    assert client.chat.completions.create(model="echo", messages=messages).choices[0].message.content == (
        "hello big world"
    )
    chunks = list(client.chat.completions.create(model="echo", messages=messages, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "hello big world"
    assert all(c.choices for c in chunks)  # usage was asked of the engine and is not shown to who did not ask
    asked = list(
        client.chat.completions.create(
            model="echo", messages=messages, stream=True, stream_options={"include_usage": True}
        )
    )
    assert asked[-1].usage
    assert asked[-1].usage.completion_tokens == 3
    assert len(client.embeddings.create(model="echo", input="x").data[0].embedding) == 16
    with pytest.raises(openai_client.NotFoundError):
        client.chat.completions.create(model="nope", messages=messages)


def test_statuses_tell_what_is_wrong(run: Run) -> None:
    run.write([run.engine()[0]])
    run.start()
    assert run.status(chat(model="nope"))[0] == 404
    assert run.status(chat(), key="llmgw_aaaaaaaa_wrong")[0] == 401
    assert run.status(chat(), key=run.limited)[0] == 403
    code, body, headers = run.status(chat(model="down"))
    assert (code, headers["Retry-After"]) == (503, "5")
    assert "0 of 3 nodes fit" in body["error"]["message"]
    for broken in (b"{", b"[]", b'{"messages": []}', b'{"model": 5}', b"[" * 100_000):
        assert run.status(broken)[0] == 400
    assert run.status(chat(), path="/nowhere")[0] == 404


def test_an_unknown_key_without_a_database_is_503_not_401(run: Run) -> None:
    run.write([], keys=[], keys_complete=False)
    run.start()
    assert run.status(chat())[0] == 503


def test_row_49_an_unknown_key_is_503_while_the_database_is_away_and_401_when_it_is_back(run: Run) -> None:
    """The feed says when it has last seen the database; known keys are served meanwhile."""
    run.write([run.engine()[0]])
    mark = mark_of(run.routes)
    mark.touch()
    os.utime(mark, (time.time() - 2 * FRESH_SECONDS,) * 2)
    run.start()
    unknown = new_key()[0]
    assert run.status(chat())[0] == 200
    status, _, headers = run.status(chat(), unknown)
    assert (status, headers["retry-after"]) == (503, "5")
    mark.touch()
    wait_for(lambda: run.status(chat(), unknown)[0] == 401, "the feed's word")


def test_a_dead_endpoint_costs_no_request(run: Run) -> None:
    (first, process), (second, _) = run.engine(), run.engine()
    run.write([first, second])
    run.start()
    for _ in range(4):
        assert run.status(chat())[0] == 200
    process.kill()
    process.wait()
    assert [run.status(chat())[0] for _ in range(20)] == [200] * 20


def test_requests_are_spread(run: Run) -> None:
    ports = [run.engine()[0], run.engine()[0]]
    run.write(ports)
    run.start()
    for _ in range(10):
        run.status(chat())
    served = []
    for port in ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        served.append(int(text.split("vllm:request_success_total ")[1].split("\n")[0]))
    assert served == [5, 5]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_client_that_leaves_ends_the_engines_work(run: Run, stream: bool) -> None:
    port, _ = run.engine("--chunk-delay", "0.5")
    run.write([port])
    run.start()

    def running() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return int(answer.read().decode().split("num_requests_running ")[1].split("\n")[0])

    body = json.dumps(chat(" ".join("w" * 60), stream=stream)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {run.key}\r\n"
    client = socket.create_connection(("127.0.0.1", run.port))
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    wait_for(lambda: running() == 1, "the engine at work")
    client.close()
    began = time.monotonic()
    wait_for(lambda: running() == 0, "the engine's rest", 5)
    assert time.monotonic() - began < 2
    row = wait_for(run.usage, "the usage row")[0]
    assert row["completed"] is False


def test_an_engine_that_dies_in_mid_stream_is_an_error_event_and_not_complete(run: Run) -> None:
    port, process = run.engine("--chunk-delay", "0.2")
    run.write([port])
    run.start()
    heard = b""
    with run.ask(chat("a b c d e f", stream=True)) as answer:
        for line in answer:
            heard += line
            if heard.count(b"data:") == 2:
                process.kill()
    assert b'"error"' in heard
    assert b"[DONE]" not in heard
    assert wait_for(run.usage, "the usage row")[0]["completed"] is False


def test_a_changed_table_is_taken_and_a_broken_one_is_not(run: Run) -> None:
    port, _ = run.engine()
    run.write([])
    run.start()
    assert run.status(chat())[0] == 503
    run.write([port])
    wait_for(lambda: run.status(chat())[0] == 200, "the new table")
    run.routes.write_text("{broken")
    time.sleep(1.2)  # longer than the poll: there is no event for "nothing happened"
    assert run.status(chat())[0] == 200


def test_term_finishes_streams_first(run: Run) -> None:
    port, _ = run.engine("--chunk-delay", "0.2")
    run.write([port])
    run.start()
    router = run.processes[-1]
    heard = []
    with run.ask(chat("a b c d e", stream=True)) as answer:
        for line in answer:
            heard.append(line)
            if len(heard) == 1:
                os.kill(router.pid, signal.SIGTERM)
    assert b"data: [DONE]\n" in heard
    assert router.wait(10) == 0


EVENTS = [
    b'data: {"choices":[{"delta":{}}]}\n\n',
    b": ping\n\n",
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
]


@given(st.lists(st.sampled_from(EVENTS), max_size=8), st.lists(st.integers(1, 40), max_size=20), st.booleans())
def test_a_stream_cut_anywhere_reads_the_same(events: list[bytes], cuts: list[int], strip: bool) -> None:
    whole = b"".join(events) + b"data: [DONE]\n\n"
    reader, out, rest = SseReader(strip_usage=strip), b"", whole
    for cut in [*cuts, len(whole)]:
        out += reader.feed(rest[:cut])
        rest = rest[cut:]
    out += reader.finish()
    assert out == (whole.replace(EVENTS[2], b"") if strip else whole)
    assert reader.facts.done
    assert reader.facts.completion_tokens == (2 if EVENTS[2] in events else None)


def test_an_error_before_done_is_no_completion() -> None:
    reader = SseReader(strip_usage=False)
    reader.feed(b'data: {"error":{"code":500}}\n\ndata: [DONE]\n\n')
    assert reader.facts.failed


def test_usage_is_asked_for_without_touching_the_rest() -> None:
    body = b'{"model":"m","stream":true,"messages":[{"content":"\\u00e4"}]} '
    asked = openai.read(body)
    changed, added = openai.ask_usage(body, "/v1/chat/completions", asked)
    assert added
    assert json.loads(changed) == json.loads(body) | {"stream_options": {"include_usage": True}}


def test_keys() -> None:
    import datetime

    text, prefix, sha256 = new_key()
    now = datetime.datetime.now(datetime.UTC)
    keys = {prefix: Key(id="1", name="n", prefix=prefix, sha256=sha256)}
    assert authenticate(keys, text, now) is keys[prefix]
    assert authenticate(keys, text + "x", now) is Denied.UNKNOWN
    assert authenticate(keys, None, now) is Denied.MISSING
    old = {prefix: Key(id="1", name="n", prefix=prefix, sha256=sha256, expires=now)}
    assert authenticate(old, text, now) is Denied.EXPIRED
    assert len(text) == len("llmgw_") + 8 + 1 + 43
