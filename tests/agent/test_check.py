"""A question to the agent: what would stand against a start is told, and nothing is started."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent_client import config
from agent_client.app import Agent
from agent_client.protocol.codec import encode
from agent_client.protocol.messages import Check, Checked, ShardSpec


def check(folder: Path, profile: dict[str, Any], path: Path | None = None) -> Checked:
    agent = Agent(config.load(flags={"state_dir": str(folder)}, environ={}, path=path))
    spec = ShardSpec(replica="one at revision 2", served_names=("one",), profile=profile)
    return asyncio.run(agent._checked(Check(check=7, spec=spec)))


@pytest.mark.parametrize(
    ("profile", "code"),
    [
        ({"engine": "echo", "gpus": 0}, ""),
        ({"engine": "echo", "gpus": 0, "model": "/no/such"}, "model_missing"),
        ({"engine": "echo", "gpus": 0, "extra_args": ["--port=1"]}, "flag_owned"),
        ({"engine": "none"}, "invalid_profile"),
    ],
)
def test_what_stands_against_a_start_is_told(tmp_path: Path, profile: dict[str, Any], code: str) -> None:
    answer = check(tmp_path, profile)
    assert (answer.check, answer.code) == (7, code)
    assert bool(answer.detail) == bool(code)
    assert not (tmp_path / "ledger.json").exists()


def test_all_that_stands_against_it_is_told_the_most_decisive_first(tmp_path: Path) -> None:
    profile = {"engine": "echo", "gpus": 0, "model": "/no/such", "extra_args": ["--port=1"]}
    answer = check(tmp_path, profile)
    assert [problem.code for problem in answer.problems] == ["flag_owned", "model_missing"]
    assert (answer.problems[0].code, answer.problems[0].hint) == (answer.code, answer.hint)
    assert all(problem.text.startswith("cannot ") for problem in answer.problems)
    wrong = check(tmp_path, {"engine": "echo", "gpus": -1, "tensor_parallel": 0, "modle": "x"})
    assert (wrong.code, len(wrong.problems)) == ("invalid_profile", 3)


def test_what_is_told_has_a_limit_and_no_secrets(tmp_path: Path) -> None:
    secret = "hf_canary_of_the_check"
    words = [f"--no-such-{number}-{secret}" for number in range(200)]
    profile = {"engine": "echo", "gpus": 0, "env": {"HF_TOKEN": secret}, "model": f"/no/{secret}", "extra_args": words}
    answer = check(tmp_path, profile)
    assert secret not in encode(answer, seq=1)
    numbers = ("gpus", "tensor_parallel", "pipeline_parallel", "data_parallel", "nodes", "max_model_len", "model")
    others = ("extra_args", "env", "start_timeout_seconds", "drain_timeout_seconds", "dtype", "quantization")
    unknown = {f"field_{number}": 1 for number in range(200)}
    wrong = check(tmp_path, {"engine": "echo"} | dict.fromkeys((*numbers, *others), -1) | unknown)
    assert wrong.problems[-1].code == "more"
    assert len(encode(wrong, seq=1)) < 64 * 1024


OPTIONS = " ".join(f"--{name}" for name in ("host", "port", "served-model-name", "tensor-parallel-size", "swap-spade"))
PROGRAM = f"""#!{sys.executable}
import sys, time
if "--version" in sys.argv:
    print("9.1.0")
else:
    time.sleep(1.5)
    for name in "{OPTIONS}".split():
        print("  " + name)
"""


def test_an_engine_that_takes_its_time_to_tell_of_its_options_is_waited_for(tmp_path: Path) -> None:
    """F33: nothing is stopped for the answer yet, so a flag that an upgrade removed must not slip through."""
    program = tmp_path / "vllm"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    file = tmp_path / "agent.yaml"
    file.write_text(f"policy: {{engines: {{vllm: {{command: [{program}, serve]}}}}}}")
    profile = {"engine": "vllm", "model": "org/m", "gpus": 0, "extra_args": ["--swap-space", "4"]}
    began = time.monotonic()
    answer = check(tmp_path, profile, file)
    assert (answer.check, answer.code) == (7, "flag_unknown")
    assert "cannot use --swap-space in extra_args: the vllm 9.1.0 of this node has no such option" in answer.detail
    assert "--swap-spade" in answer.hint
    assert time.monotonic() - began < 30
