"""Real engines under the chain: tiny random models, the official client.

llama.cpp comes from the xllamacpp wheel. vLLM is too big to install for a test: LLMGW_TEST_VLLM names its program.
"""

import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from tests.e2e.harness import ROOT, House, wait_for
from tests.support import tiny_gguf, tiny_hf

VLLM = os.environ.get("LLMGW_TEST_VLLM")
pytestmark = [pytest.mark.e2e]


@pytest.mark.heavy  # a whole house and an engine of megabytes
@pytest.mark.timeout(180)
@pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None and not os.environ.get("CI"), reason="xllamacpp is not installed"
)
def test_llamacpp_serves_the_official_client(house: House, tmp_path: Path) -> None:
    model = tmp_path / "models" / "tiny.gguf"
    model.parent.mkdir()
    tiny_gguf.write(str(model))
    launcher = [sys.executable, str(ROOT / "agent_client" / "programs" / "xllamacpp_server.py")]
    profile = {"engine": "llamacpp", "model": str(model), "gpus": 0, "max_model_len": 512, "options": {"parallel": 2}}
    profile["kv_cache_dtype"] = "bfloat16"
    serve(house, model.parent, profile, {"command": launcher}, 60)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.skipif(VLLM is None, reason="LLMGW_TEST_VLLM does not name a vllm program")
def test_vllm_serves_the_official_client(house: House, tmp_path: Path) -> None:
    model = tmp_path / "models" / "tiny"
    tiny_hf.write(model)
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    on_a_cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    profile = {"engine": "vllm", "model": str(model), "gpus": 0, "max_model_len": 1024}
    profile["extra_args"] = ["--enforce-eager"]
    serve(house, model.parent, profile, {"command": [str(VLLM), "serve"], "env": offline | on_a_cpu}, 240)


def serve(house: House, models: Path, profile: dict[str, Any], engine: dict[str, Any], seconds: float) -> None:
    """The chain with this engine, from the catalog to usage in the database."""
    policy = {"engines": {profile["engine"]: engine}, "model_roots": [str(models)], "extra_args": ["--enforce-eager"]}
    agent_file = house.folder / "agent.yaml"
    agent_file.write_text(yaml.safe_dump({"policy": policy}))
    house.agent(LLMGW_AGENT_CONFIG=str(agent_file))
    house.api("models/", {"name": "tiny", "aliases": ["default"], "profile": profile})
    wait_for(lambda: house.replica()["state"] == "ready", "the engine", seconds)
    wait_for(lambda: house.chat("tiny"), "the route")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{house.router_port}/v1", api_key=house.key, max_retries=0) as client:
        use_client(client)
    assert wait_for(lambda: house.manage("shell", "-v0", "-c", COUNT) != "0", "usage in the database")


COUNT = "from routing.models import Usage; print(Usage.objects.filter(completed=True, completion_tokens__gt=0).count())"


def use_client(client: openai.OpenAI) -> None:
    assert "tiny" in {model.id for model in client.models.list()}
    messages: Any = [{"role": "user", "content": "hello"}]
    whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=8)
    assert whole.usage
    assert 0 < whole.usage.completion_tokens <= 8
    stream = client.chat.completions.create(
        model="default", messages=messages, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[-1].usage
    assert {chunk.model for chunk in chunks} == {whole.model} == {"tiny"}  # the name, whichever alias was asked for
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    leaving = client.chat.completions.create(model="tiny", messages=messages, max_tokens=400, stream=True)
    next(iter(leaving))
    leaving.close()
    began = time.monotonic()
    client.chat.completions.create(model="tiny", messages=messages, max_tokens=1)
    assert time.monotonic() - began < 20
