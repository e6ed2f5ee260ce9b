"""What an engine's page of figures tells, and what the kernel's log does."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_client import probes
from agent_client.engines import Miss, Probed, Readiness
from agent_client.hardware.leftovers import oom_killed
from tests.support.ports import free_port

VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 1.5e-05
vllm:generation_tokens_total{engine="0",model_name="m"} 1.2e+06
"""
LLAMA = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\nllamacpp:tokens_predicted_total 12\n"


@pytest.mark.parametrize(
    ("page", "figures"),
    [
        (VLLM, (3, 4, (1_200_000.0, 1.5e-05))),
        (LLAMA, (1, 0, (12.0,))),
        ("", (None, None, None)),
    ],
)
def test_figures_have_one_set_of_names(page: str, figures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_get", lambda *_: (200, page.encode()))
    load = probes.load("http://127.0.0.1:1", key=None)
    assert (load.running, load.waiting, load.moving) == figures


def answering(**pages: tuple[int, bytes]) -> Iterator[str]:
    """A server of pages by the end of their path; what it has no page for it never answers."""
    ended = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.rpartition("/")[2])
            if page is None:
                ended.wait(30)
                return
            self.send_response(page[0])
            self.send_header("Content-Length", str(len(page[1])))
            self.end_headers()
            self.wfile.write(page[1])

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            ended.set()
            server.shutdown()
            thread.join()


OURS = b'{"data": [{"id": "m"}]}'


@pytest.mark.parametrize(
    ("pages", "miss", "told"),
    [
        ({"health": (503, b"warming\n up")}, Miss.STATUS, "/health answered 503: warming up"),
        ({"health": (200, b"")}, Miss.SILENT, "/v1/models gave no answer within 0.2 s"),
        (
            {"health": (200, b""), "models": (200, b'{"data": [{"id": "/models/x", "aliases": ["y"]}]}')},
            Miss.UNLISTED,
            "/v1/models lists /models/x, y, not m",
        ),
        ({"health": (200, b""), "models": (200, b'{"data": 5}')}, Miss.UNLISTED, "/v1/models lists no model, not m"),
        ({"health": (200, b""), "models": (200, b"<html>")}, Miss.BROKEN, "/v1/models: Expecting value"),
        (
            {"health": (200, b""), "models": (200, OURS), "completions": (500, b'{"error": "no template"}')},
            Miss.CHAT,
            '/v1/chat/completions answered 500: {"error": "no template"}',
        ),
        ({"health": (200, b""), "models": (200, OURS), "completions": (400, b"")}, None, ""),
    ],
)
def test_a_question_tells_what_it_got(pages: dict[str, Any], miss: Miss | None, told: str) -> None:
    with contextlib.contextmanager(answering)(**pages) as url:
        found = probes.ready(url, Readiness(), name="m", key=None, timeout=0.2)
    assert found.miss is miss
    assert found.told.startswith(told)


def test_nobody_who_listens_is_told_from_one_who_is_silent() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert probes.ready(url, Readiness(), name="m", key=None) == Probed(
        miss=Miss.REFUSED, told="/health: connection refused"
    )
    assert probes.load(url, key=None).refused
    with contextlib.contextmanager(answering)() as url:
        assert not probes.load(url, key=None, timeout=0.1).refused


def test_a_prefill_that_only_fills_the_cache_moves_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = iter([VLLM, VLLM.replace("1.5e-05", "0.02")])
    monkeypatch.setattr(probes, "_get", lambda *_: (200, next(pages).encode()))
    first, second = (probes.load("http://127.0.0.1:1", key=None).moving for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    "line",
    [
        "3,1,2,-;Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:1kB",
        "3,1,2,-;Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB",
    ],
)
def test_the_kernel_names_whom_it_killed(line: str, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(line + "\n")
    assert oom_killed({12, 4711}, log)
    assert not oom_killed({12}, log)
    assert not oom_killed({4711}, tmp_path / "missing")
