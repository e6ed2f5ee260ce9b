"""The same causes as other terminals, launchers and log drivers pass them on, and outputs that mean harm."""

import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_client.engines.diagnosis import ExitCause, bare, diagnose
from agent_client.engines.lines import read_lines
from tests.engines.test_diagnosis import EXPECTED, recorded


def ray(line: str) -> str:
    return f"\x1b[36m(RayWorkerWrapper pid=4711, ip=10.0.0.2)\x1b[0m {line} \x1b[32m[repeated 3x across cluster]\x1b[0m"


#: The same output as other terminals, launchers and log drivers pass it on.
DRESSES: dict[str, Callable[[str], str]] = {
    "colours": lambda line: f"\x1b[1;31m{line}\x1b[0m",
    "coloured prefix": lambda line: line.replace(" pid=", "\x1b[0m pid=") if line.startswith("(") else line,
    "carriage return": lambda line: line + "\r",
    "after a progress bar": lambda line: f"Loading: 10%|#  |\rLoading: 20%|## |\r{line}",
    "ray": ray,
    "raylet": lambda line: f"(raylet, ip=10.0.0.3) {line}",
    "rank": lambda line: f"[rank3]: {line}",
    "compose": lambda line: f"vllm-1  | {line}",
    "cri": lambda line: f"2025-12-01T06:13:41.123456789Z stderr F {line}",
    "journal": lambda line: f"Dec  1 06:13:41 gpu-07 llmgw-agent[71]: {line}",
    "pods and ray": lambda line: f"2025-12-01T06:13:41Z stdout F {ray(line)}",
}


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize("name", EXPECTED)
def test_the_cause_is_found_in_every_dress(name: str, dress: str) -> None:
    found = diagnose([DRESSES[dress](line) for line in recorded(name)])
    plain = diagnose(recorded(name))
    assert (found.code, found.hint) == (plain.code, plain.hint)
    assert bare(plain.line) in found.line
    assert "\x1b" not in found.line + found.sentence + found.hint


WORKERS = ("Worker_TP7", "Worker_PP1_TP3", "Worker_DP1_TP0_EP12", "VllmWorkerProcess", "RayWorkerWrapper")


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("name", [name for name in EXPECTED if "(Worker" in "".join(recorded(name))])
def test_the_number_of_workers_does_not_matter(name: str, worker: str) -> None:
    lines = []
    for line in recorded(name):
        other = re.sub(r"\((Worker\w*) pid=(\d+)\)", rf"({worker} pid=1\2)", line)
        lines += [other, re.sub(r"_TP\d", "_TP0", other)] if other != line else [line]
    assert diagnose(lines).code == EXPECTED[name]["code"]


HOSTILE = (
    "a" * 16_384,
    "lib" * 5_000,
    "lib.so" * 2_700,
    "x contains custom code" * 700,
    "quantization method x is not supported for the current GPU" * 280,
    "Weight output_size = 1" * 700,
    "The output_size of " * 800,
    "(" * 16_384,
    "a.A" * 5_000 + "Error",
    "| " * 8_000,
    "\x1b]" * 8_000,
    "[0" * 8_000,
)


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: line[:12])
def test_no_line_takes_long(line: str) -> None:
    begin = time.perf_counter()
    diagnose([line])
    assert time.perf_counter() - begin < 0.5


def test_a_long_output_takes_little_time() -> None:
    lines = [*recorded("36-vllm-vocabulary-not-divisible.txt")[:60], "INFO 12-01 06:13:41 [x.py:1] loading"] * 100
    begin = time.perf_counter()
    diagnose(lines)
    assert (time.perf_counter() - begin) / len(lines) < 0.001


PIECES = [line for name in EXPECTED for line in recorded(name)]
TEXT = st.one_of(st.text(max_size=80), st.sampled_from(PIECES), st.sampled_from(PIECES).map(lambda x: x[: len(x) // 2]))


@given(
    st.lists(TEXT, max_size=20),
    st.none() | st.integers(),
    st.none() | st.integers(-70, 256),
    st.booleans(),
)
def test_any_output_gets_a_sentence_and_a_line_that_stands_in_it(
    lines: list[str], code: int | None, number: int | None, oom: bool
) -> None:
    found = diagnose(lines, ExitCause(code=code, signal=number, oom_killed=oom))
    assert found.sentence
    assert found.line == "" or found.line in {line.text for line in read_lines(lines)}
    assert not {"\x1b", "\r", "\x00"} & set(found.line + found.sentence)
