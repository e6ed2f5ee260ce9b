"""A real engine under the chain: llama.cpp from the xllamacpp wheel, a tiny random model, the official client."""

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
from tests.support import tiny_gguf

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None and not os.environ.get("CI"), reason="xllamacpp is not installed"
    ),
]


def test_llamacpp_serves_the_official_client(house: House, tmp_path: Path) -> None:
    model = tmp_path / "models" / "tiny.gguf"
    model.parent.mkdir()
    tiny_gguf.write(str(model))
    launcher = [sys.executable, str(ROOT / "agent_client" / "programs" / "xllamacpp_server.py")]
    policy = {"engines": {"llamacpp": {"command": launcher}}, "model_roots": [str(model.parent)]}
    agent_file = tmp_path / "agent.yaml"
    agent_file.write_text(yaml.safe_dump({"policy": policy}))
    house.agent(LLMGW_AGENT_CONFIG=str(agent_file))
    profile = {"engine": "llamacpp", "model": str(model), "gpus": 0, "max_model_len": 512, "options": {"parallel": 2}}
    house.api("models/", {"name": "tiny", "aliases": ["default"], "profile": profile})
    wait_for(lambda: house.replica()["state"] == "ready", "the engine", 60)
    wait_for(lambda: house.chat("tiny"), "the route")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{house.router_port}/v1", api_key=house.key, max_retries=0) as client:
        use_client(client)
    row = wait_for(lambda: house.manage("shell", "-v0", "-c", COUNT) != "0", "usage in the database")
    assert row


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
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    leaving = client.chat.completions.create(model="tiny", messages=messages, max_tokens=400, stream=True)
    next(iter(leaving))
    leaving.close()
    began = time.monotonic()
    client.chat.completions.create(model="tiny", messages=messages, max_tokens=1)
    assert time.monotonic() - began < 20
