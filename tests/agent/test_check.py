"""A question to the agent: what would stand against a start is told, and nothing is started."""

from pathlib import Path
from typing import Any

import pytest

from agent_client import config
from agent_client.app import Agent
from agent_client.protocol.messages import Check, Checked, ShardSpec


def check(folder: Path, profile: dict[str, Any]) -> Checked:
    agent = Agent(config.load(flags={"state_dir": str(folder)}, environ={}, path=None))
    spec = ShardSpec(replica="one at revision 2", served_names=("one",), profile=profile)
    return agent._check(Check(check=7, spec=spec))


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
