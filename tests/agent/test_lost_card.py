"""An engine whose card goes: the card is told as the cause, with what the engine said, and no other shard fails."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from agent_client import preflight
from agent_client.hardware import Discovery, DiscoveryOptions
from agent_client.protocol.messages import DesiredShard, ShardSpec
from agent_client.protocol.states import FailureCode, ShardState
from tests.agent.hardware.machine import Machine, needs_gcc
from tests.agent.test_agent import Node, order
from tests.support import fake_nvml

pytestmark = needs_gcc
GPUS = [str(fake_nvml.card(i)[f"{i}.uuid"]) for i in range(4)]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path, monkeypatch, fake_nvml.build(tmp_path / "library"))
    machine.write(cards())
    return machine


def cards(**changes: object) -> dict[str, object]:
    return fake_nvml.machine(*(fake_nvml.card(i) for i in range(4))) | changes


@pytest.fixture
async def node(tmp_path: Path, machine: Machine) -> Any:
    eyes = Discovery(DiscoveryOptions(node_id="n", ib_root=tmp_path / "no-ib", kernel_log=tmp_path / "no-log"))
    node = Node(tmp_path)
    node.tools["preflight"] = lambda profile, spec: None
    node.tools["sick_card"] = lambda spec: preflight.sick_card(spec, eyes.look().to_json())
    node.again()
    yield node
    await node.supervisor.close(stop_engines=True)


def on(gpu: int) -> DesiredShard:
    plain = order(gpus=1)
    spec = dataclasses.replace(plain.spec, replica=f"m/{gpu}", gpus=(GPUS[gpu],))
    return dataclasses.replace(plain, shard=f"uid-{gpu}/0", spec=spec)


async def start(node: Node, gpu: int) -> int:
    node.reports.clear()
    await node.supervisor.start(on(gpu))
    (pid,) = (await node.until(ShardState.READY)).pids
    return int(pid)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (cards(**{"3.memory": "!15"}), f"GPU 3 ({GPUS[3]}): the driver has lost the card"),
        (cards(count=3), f"GPU {GPUS[3]} is gone from this node"),
        (cards(**{"3.field.230": 1}), f"GPU 3 ({GPUS[3]}): the driver asks for recovery: reset"),
    ],
    ids=["lost", "gone", "reset"],
)
async def test_a_shard_whose_card_goes_fails_for_that_and_the_others_stay(
    node: Node, machine: Machine, facts: dict[str, object], says: str
) -> None:
    """Failures 11."""
    await start(node, 1)
    pid = await start(node, 3)
    machine.write(facts)
    os.kill(pid, signal.SIGSEGV)
    failed = await node.until(ShardState.FAILED)
    assert (failed.shard, failed.code) == ("uid-3/0", FailureCode.GPU_MISSING)
    assert failed.detail.startswith(f"cannot run m/3: {says}; then it crashed")
    assert failed.hint
    assert {report.shard: report.state for report in node.supervisor.reports()}["uid-1/0"] is ShardState.READY


async def test_an_engine_that_fails_on_a_healthy_card_is_told_by_its_own_words(node: Node) -> None:
    os.kill(await start(node, 3), signal.SIGSEGV)
    failed = await node.until(ShardState.FAILED)
    assert failed.code == "segfault"


def test_no_card_is_named_where_all_are_well() -> None:
    spec = ShardSpec(replica="m/1", served_names=("m",), profile={}, gpus=("GPU-1",))
    gpu = {"uuid": "GPU-1", "index": 0, "placeable": True, "problems": []}
    assert preflight.sick_card(spec, {"gpus": [gpu]}) is None
    assert preflight.sick_card(dataclasses.replace(spec, gpus=()), {}) is None
