"""A model by its hub id: the node fetches it, and the engine is given the folder."""

from pathlib import Path

import pytest
import yaml

from tests.e2e.harness import House, wait_for
from tests.support import tiny_hf
from tests.support.hub import COMMIT, Hub, running

# A whole house for what tests/agent/test_weights.py shows of the agent alone.
pytestmark = [pytest.mark.e2e, pytest.mark.heavy]


@pytest.mark.timeout(120)
def test_a_hub_id_becomes_a_folder_of_the_node(house: House, tmp_path: Path) -> None:
    tiny_hf.write(tmp_path / "tiny")
    files = {str(path.relative_to(tmp_path / "tiny")): path.read_bytes() for path in (tmp_path / "tiny").iterdir()}
    with running(Hub(files)) as hub:
        policy = {"model_roots": ["/nowhere"], "hub": {"cache": str(tmp_path / "hub"), "endpoint": hub.url}}
        agent_file = house.folder / "agent.yaml"
        agent_file.write_text(yaml.safe_dump({"policy": policy}))
        house.agent(LLMGW_AGENT_CONFIG=str(agent_file))
        house.api("models/", {"name": "tiny", "profile": {"engine": "vllm", "model": "org/tiny", "gpus": 0}})
        wait_for(lambda: house.replica()["state"] == "ready", "the engine")
        (pid,) = house.replica()["shards"][0]["pids"]
        argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        assert any(word.endswith(f"models--org--tiny/snapshots/{COMMIT}") for word in argv)

        house.api("models/", {"name": "other", "profile": {"engine": "vllm", "model": "org/other", "gpus": 0}})
        failed = wait_for(lambda: next(iter(failures(house)), None), "the refusal")
        assert "cannot fetch org/other: the hub has no such model" in failed


def failures(house: House) -> list[str]:
    rows = house.api("replicas/")["results"]
    return [row["latest_failure"]["reason"] for row in rows if row["latest_failure"]]
