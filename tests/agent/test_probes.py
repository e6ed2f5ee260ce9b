"""What an engine's page of figures tells, and what the kernel's log does."""

from pathlib import Path
from typing import Any

import pytest

from agent_client import probes
from agent_client.hardware.leftovers import oom_killed

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
