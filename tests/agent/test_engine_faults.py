"""Rows of the failure catalogue that an agent alone can show, with real files and processes."""

import asyncio
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_client import config
from agent_client.machine import Limits
from agent_client.profile import EngineKind
from agent_client.protocol.states import ShardState
from tests.agent.test_agent import Node, order
from tests.support import tiny_gguf, tiny_hf


def nothing(folder: Path) -> Path:
    return folder


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def torn(folder: Path) -> Path:
    tiny_hf.write(folder)
    (weights,) = folder.glob("*.safetensors")
    os.truncate(weights, weights.stat().st_size // 2)
    return folder


def a_part_missing(folder: Path) -> Path:
    tiny_hf.write(folder)
    (weights,) = folder.glob("*.safetensors")
    weights.rename(folder / "model-00001-of-00002.safetensors")
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": parts}))
    return folder


def torn_gguf(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "tiny.gguf"
    tiny_gguf.write(str(path))
    os.truncate(path, path.stat().st_size // 2)
    return path


@pytest.mark.parametrize("make", [nothing, empty, torn, a_part_missing, torn_gguf])
async def test_a_model_that_is_not_whole_starts_nothing(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """Failures 37: missing or half downloaded; it is seen before anything is spawned."""
    model = make(tmp_path / "model")
    kind = EngineKind.LLAMACPP if model.suffix else EngineKind.VLLM
    node = Node(tmp_path / "state")
    node.config.state_dir.mkdir()
    engines = {kind: config.EnginePolicy(command=("/bin/false",))}
    node.config = dataclasses.replace(node.config, policy=dataclasses.replace(node.config.policy, engines=engines))
    node.again()
    await node.supervisor.start(order(engine=kind.value, model=str(model)))
    failed = await node.until(ShardState.FAILED)
    assert [report.state for report in node.reports] == [ShardState.VALIDATING, ShardState.FAILED]
    assert failed.code.startswith(("model_", "weights_", "config_", "gguf_"))
    assert str(model) in failed.detail or model.name in failed.detail
    assert failed.hint
    await node.supervisor.close(stop_engines=True)


async def test_a_drain_cuts_none_of_a_hundred_streams(tmp_path: Path) -> None:
    """Failures 39, F48: all end before the deadline, so none is cut."""
    node = Node(tmp_path)
    node.limits = Limits(look=0.1, drain_look=0.1)
    node.again()
    await node.supervisor.start(order(extra_args=["--chunk-delay", "0.2"]))
    ready = await node.until(ShardState.READY)
    port = int((ready.endpoint or "").rpartition(":")[2])
    begun: list[int] = []

    async def stream(number: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        message = {"role": "user", "content": "one two three four five six seven"}
        body = json.dumps({"model": "m", "stream": True, "messages": [message]}).encode()
        head = ["POST /v1/chat/completions HTTP/1.1", "Host: x", "Authorization: Bearer CANARY", "Connection: close"]
        writer.write("\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body)
        data = await reader.readuntil(b"data:")
        begun.append(number)
        data += await reader.read()
        writer.close()
        return data

    streams = [asyncio.create_task(stream(number)) for number in range(100)]
    async with asyncio.timeout(30):
        while len(begun) < 100:
            await asyncio.sleep(0.02)
    await node.supervisor.drain("uid/0", 1, deadline_seconds=60, reason="test")
    stopped = await node.until(ShardState.STOPPED)
    answers: list[Any] = await asyncio.gather(*streams)
    assert sum(b"data: [DONE]" in answer for answer in answers) == 100
    assert stopped.detail == "test"
    await node.supervisor.close(stop_engines=True)
