"""A failed engine's report: the cause out of its output, the line, a hint, and no secret."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_client import config
from agent_client.engines import Miss, Probed
from agent_client.engines.causes import NODE_LOCAL_CAUSES
from agent_client.engines.diagnosis import bare
from agent_client.profile import EngineKind, Problem
from agent_client.protocol.codec import encode
from agent_client.protocol.messages import ShardStatus
from agent_client.protocol.states import FailureCode, ShardState
from agent_client.supervisor.evidence import (
    failure_of_exit,
    failure_of_start,
    problems_told,
    read_output,
    redacted,
    rotated,
)
from tests.agent.test_agent import Node, order

SAMPLES = Path(__file__).parents[1] / "engines" / "data" / "failures"
NOISE = "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."

Fail = Callable[..., Any]


@pytest.fixture
async def fail(tmp_path: Path) -> Any:
    """Run a stand-in for vLLM that writes what it is told and ends; gives the report."""
    node = Node(tmp_path)

    async def run(text: str, *, end: str = "sys.exit(1)", **profile: Any) -> Any:
        script = tmp_path / "engine.py"
        script.write_text(f"import os, sys, time\nsys.stderr.write({text!r})\nsys.stderr.flush()\n{end}\n")
        engines = {EngineKind.VLLM: config.EnginePolicy(command=(sys.executable, str(script)))}
        node.config = dataclasses.replace(node.config, policy=dataclasses.replace(node.config.policy, engines=engines))
        node.again()
        await node.supervisor.start(order(engine="vllm", model="org/m", **profile))
        return await node.until(ShardState.FAILED)

    yield run
    await node.supervisor.close(stop_engines=True)


async def test_the_report_of_a_failed_engine_names_cause_line_and_hint(fail: Fail) -> None:
    sample = (SAMPLES / "03-vllm-heads-not-divisible.txt").read_text()
    report = await fail(sample + f"{NOISE}\n" * 200)
    assert report.code == "heads-not-divisible"
    assert report.detail.startswith("cannot run m/1: 28 attention heads do not divide by tensor_parallel 8 (it exited")
    assert "it wrote: Value error, Total number of attention heads (28) must be divisible" in report.detail
    assert report.hint == "choose a tensor_parallel that divides 28"
    assert report.exit_code == 1
    assert len(report.tail) == 40
    assert report.tail[-1] == NOISE


async def test_a_refusal_lists_all_that_stands_against_it_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "hub-token").write_text("hf_canary_of_the_node\n")
    node = Node(tmp_path / "state")
    engines = {EngineKind.VLLM: config.EnginePolicy(command=("/bin/false",))}
    policy = dataclasses.replace(node.config.policy, engines=engines)
    node.config = dataclasses.replace(node.config, policy=policy, secrets={"hub": tmp_path / "hub-token"})
    node.again()
    words = ["--port", "1", "--host=x", "--api-key=CANARY"]
    await node.supervisor.start(order(engine="vllm", extra_args=words, model="/no/hf_canary_of_the_node"))
    report = await node.until(ShardState.FAILED)
    await node.supervisor.close(stop_engines=True)
    assert report.record
    problems = report.record["problems"]
    assert {problem["code"] for problem in problems} >= {"flag_owned", "model_missing"}
    assert len(problems) > 2
    assert all(problem.keys() == {"code", "text", "hint"} for problem in problems)
    assert problems[0]["text"] in report.detail
    whole = encode(ShardStatus(report=report), seq=1)
    assert "/no/(secret)" in whole
    assert "canary" not in whole.lower()


def test_many_long_problems_of_a_refusal_are_bounded_and_counted() -> None:
    def problems(count: int, text: str) -> list[Problem]:
        return [Problem(code=f"c{number}", field="f", text=text, hint="h") for number in range(count)]

    told = problems_told(problems(500, "é" * 100_000), ())
    assert len(json.dumps(told)) < 20_000
    assert told[-1]["text"] == f"and {500 - len(told) + 1} more"
    assert [each["code"] for each in problems_told(problems(3, "short"), ())] == ["c0", "c1", "c2"]
    assert len(problems_told(problems(31, "short"), ())) == 31
    cut = problems_told(problems(1, "x" * 995 + "top-secret-word"), ["top-secret-word"])
    assert "top-" not in cut[0]["text"]  # hidden before it is cut


async def test_exit_0_of_an_engine_whose_core_was_killed_is_a_failure(fail: Fail) -> None:
    report = await fail(
        "ERROR 12-01 06:13:41 [core_client.py:700] Engine core proc EngineCore died unexpectedly.\n", end=""
    )
    assert (report.code, report.exit_code) == ("engine-process-died", 0)


async def test_a_signal_is_named_where_the_output_says_nothing(fail: Fail) -> None:
    report = await fail("loading\n", end="os.kill(os.getpid(), 11)")
    assert (report.code, report.exit_signal) == ("segfault", 11)
    assert "it was ended by SIGSEGV" in report.detail


async def test_a_start_that_takes_too_long_tells_what_stands_in_its_way(fail: Fail) -> None:
    """F25, failures 36."""
    text = "[rank1]: RuntimeError: Unable to find address for: eth9\n"
    report = await fail(text, end="time.sleep(60)", start_timeout_seconds=1, stop_grace_seconds=0)
    assert report.code == FailureCode.START_TIMEOUT
    assert "not ready within 1 s (the last probe: /health: connection refused): the network interface" in report.detail
    assert "NCCL_SOCKET_IFNAME" in report.hint


async def test_a_start_that_takes_too_long_tells_what_the_last_probe_got_without_secrets(fail: Fail) -> None:
    server = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503)
        self.end_headers()
        self.wfile.write(b"no CANARY yet")
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""
    report = await fail("", end=server, start_timeout_seconds=1, stop_grace_seconds=0)
    assert report.code == FailureCode.START_TIMEOUT
    assert "within 1 s (the last probe: /health answered 503: no (secret) yet); it wrote nothing" in report.detail
    silent = await fail("", end="time.sleep(60)", start_timeout_seconds=1, stop_grace_seconds=0)
    assert "(the last probe: /health: connection refused)" in silent.detail
    assert "never listened" in silent.hint


async def test_a_rank_above_the_first_is_ready_when_it_runs_and_failed_when_it_ends(tmp_path: Path) -> None:
    node = Node(tmp_path)
    script = tmp_path / "rank.py"
    script.write_text("import sys, time\nprint(sys.argv[1:], flush=True)\ntime.sleep(1)\nsys.exit(0)\n")
    engines = {EngineKind.VLLM: config.EnginePolicy(command=(sys.executable, str(script)))}
    node.config = dataclasses.replace(node.config, policy=dataclasses.replace(node.config.policy, engines=engines))
    node.again()
    first = order(engine="vllm", model="org/m", nodes=2, tensor_parallel=2, gpus=None)
    spec = dataclasses.replace(first.spec, rank=1, nodes=2, rendezvous_address="127.0.0.1", rendezvous_port=29_501)
    await node.supervisor.start(dataclasses.replace(first, spec=spec))
    ready = await node.until(ShardState.READY)
    assert ready.endpoint is None
    report = await node.until(ShardState.FAILED)
    assert report.exit_code == 0
    assert "'--node-rank', '1', '--master-addr', '127.0.0.1', '--master-port', '29501', '--headless'" in report.tail[0]
    await node.supervisor.close(stop_engines=True)


async def test_no_secret_is_told(fail: Fail) -> None:
    report = await fail("server_args=ServerArgs(api_key='CANARY')\nValueError: CANARY is no key\n")
    assert "CANARY" not in str(report)
    assert "(secret) is no key" in report.detail


async def test_what_an_engine_prints_of_its_environment_is_hidden_where_the_environment_is(fail: Fail) -> None:
    text = "MY_API_KEY=canary-of-the-profile PLAIN=shown\nValueError: canary-of-the-profile is wrong\n"
    report = await fail(text, env={"MY_API_KEY": "canary-of-the-profile"})
    whole = encode(ShardStatus(report=report), seq=1)
    assert "canary" not in (whole if isinstance(whole, str) else whole.decode())
    assert "MY_API_KEY=(secret) PLAIN=shown" in report.tail


def test_an_end_that_nobody_saw_keeps_its_code_and_tells_what_the_output_tells() -> None:
    lines = ["torch.OutOfMemoryError: CUDA out of memory."]
    failure = failure_of_exit("m/1", lines, exit_code=None, exit_signal=None, seen=False)
    assert failure.code == FailureCode.LOST_TRACK
    assert "a GPU ran out of memory (it ended, and how is not known: an earlier agent had started it)" in failure.detail
    nothing = failure_of_exit("m/1", [], exit_code=None, exit_signal=None, seen=False)
    assert nothing.detail == "cannot run m/1: it ended, and how is not known: an earlier agent had started it"
    late = failure_of_start(
        "m/1", ["hi"], 5.0, Probed(miss=Miss.UNLISTED, told="/v1/models lists x, not m" + "!" * 999)
    )
    assert late.detail.startswith(
        "cannot run m/1: it was not ready within 5 s (the last probe: /v1/models lists x, not m!!!"
    )
    assert late.detail.endswith("…); its last line: hi")
    assert len(late.detail) < 400
    assert "under another name" in late.hint
    assert {failure_of_start("m/1", [], 5.0, Probed(miss=miss)).hint for miss in Miss} >= {late.hint}
    assert failure_of_start("m/1", [], 5.0).detail == "cannot run m/1: it was not ready within 5 s; it wrote nothing"


def test_output_is_read_across_a_rotation_and_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "a@1.log"
    assert read_output(path, most_bytes=100) == []
    rotated(path).write_text("x" * 200 + "\nold\n")
    path.write_bytes(b"new \xff\x00\n")
    assert read_output(path, most_bytes=30)[-2:] == ["old", "new \ufffd"]
    assert sum(map(len, read_output(path, most_bytes=30))) <= 30
    assert len(read_output(path, most_bytes=100)) == 3


async def test_a_flood_is_no_reason_and_a_line_of_it_is_told_once(fail: Fail) -> None:
    report = await fail("loading the model\n" + ("x" * 2_000 + "\n") * 100)
    assert report.detail == "cannot run m/1: it exited with code 1; it wrote: loading the model"
    report = await fail(("=-" * 500 + "\n") * 3, end="sys.exit(2)")
    assert report.detail.endswith("it wrote: =-=-=-… (repeated)")
    late = await fail("INFO ready soon\n" + "." * 900 + "\n", end="time.sleep(60)", start_timeout_seconds=1)
    assert late.detail.endswith("its last line: INFO ready soon")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ValueError: " + "A" * 900 + " is no dtype", "ValueError: AAA… (repeated) is no dtype"),
        ("abcabc " * 40, "abcabc abcabc abcabc … (repeated)abcabc"),
        ("-" * 10 + " done", "-" * 10 + " done"),
        ("0123456789abcdefghij-not-the-same" * 9, "0123456789abcdefghij-not-the-same" * 9),
    ],
)
def test_a_repetition_inside_a_line_is_told_once(text: str, told: str) -> None:
    assert bare(text) == told


def test_short_secrets_are_left_alone_and_long_ones_go_first() -> None:
    assert redacted(["abc abcdefgh abcdef"], ["abc", "abcdef", "abcdefgh"]) == ["abc (secret) (secret)"]


def test_causes_that_another_node_may_not_have_are_known_to_the_server() -> None:
    from fleet.wishes import NODE_LOCAL

    assert NODE_LOCAL >= NODE_LOCAL_CAUSES
    assert "shm-too-small" in NODE_LOCAL
    assert "heads-not-divisible" not in NODE_LOCAL
