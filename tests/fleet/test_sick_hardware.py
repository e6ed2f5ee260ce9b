"""From the driver's library to what is placed: mixed, taken, removed, sick and cordoned cards, fabrics that fail."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from agent_client import preflight
from agent_client.config import load
from agent_client.engines import LaunchSpec, plan
from agent_client.hardware import Discovery, DiscoveryOptions
from agent_client.profile import parse_profile
from agent_client.protocol.messages import Register, Report, ShardReport
from agent_client.protocol.states import FailureCode, ShardState
from fleet.models import Event, Gpu, GpuClaim, Replica, Shard
from fleet.services import nodes, operations, reports
from fleet.services.commands import desired_for, wire_name
from tests.agent.hardware.machine import Machine, needs_gcc
from tests.fleet.test_reconciler import model, tell, tick
from tests.support import fake_nvml

pytestmark = [pytest.mark.django_db, needs_gcc]
H100 = "h100-sxm-80gb"


class Node:
    """A machine with the fake library, as its agent would register and report it."""

    def __init__(self, folder: Path, machine: Machine, **options: Any) -> None:
        self.machine = machine
        elsewhere = {"ib_root": folder / "no-ib", "kernel_log": folder / "no-log"}
        self.eyes = Discovery(DiscoveryOptions(node_id="gpu-01", **elsewhere | options))
        self.seen: dict[str, Any] = {}
        self.admission: Any = None

    def joins(self, facts: dict[str, object], **changes: object) -> None:
        self.machine.write(facts, **changes)
        self.seen = self.eyes.look().to_json()
        before = self.admission
        identity = {"node_uid": before.node_uid, "credential": before.credential} if before else {}
        message = Register(
            protocol=1,
            agent_version="0.1.0",
            node_id="gpu-01",
            machine_id="m",
            boot_id="b",
            instance_id="i",
            hostname="gpu-01",
            mgmt_addr="127.0.0.1",
            inventory=self.seen,
            engines={"vllm": ""},
            **identity,
        )
        self.admission = nodes.register_node(message=message, remote="127.0.0.1:1", now=timezone.now())
        nodes.verify_node(node_id=self.admission.node_id, session_id=self.admission.session_id, now=timezone.now())

    def becomes(self, facts: dict[str, object], **changes: object) -> None:
        self.machine.write(facts, **changes)
        running = tuple(
            ShardReport(shard=wire_name(each), epoch=each.epoch, state=ShardState(each.state), endpoint=each.endpoint)
            for each in Shard.objects.filter(wanted=True)
        )
        report = Report(shards=running, inventory=self.eyes.look().to_json(), inventory_fingerprint="changed")
        ids = {"node_id": self.admission.node_id, "session_id": self.admission.session_id}
        reports.apply_whole_report(report=report, now=timezone.now(), **ids)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, Machine(tmp_path, monkeypatch, fake_nvml.build(tmp_path / "library")))


def claimed() -> list[int | None]:
    live = GpuClaim.objects.filter(released_at__isnull=True)
    return sorted(live.values_list("gpu__index", flat=True))  # type: ignore[type-var]


def refusal() -> str:
    return str(Replica.objects.get().reason)


def test_where_cuda_counts_otherwise_the_engine_still_gets_the_placed_card(node: Node) -> None:
    """CUDA puts the fastest card first; NVML goes by bus. A UUID means the same to both."""
    node.joins(fake_nvml.machine(fake_nvml.card(0, "Tesla T4", "15360 3 400", "7.5"), fake_nvml.card(1)))
    model(gpu_class=[H100])
    tick()
    (order,) = desired_for(node.admission.node_id).shards
    assert order.spec.gpus == ("GPU-00000001-aaaa-bbbb-cccc-dddddddddddd",)
    launch = plan(
        LaunchSpec(
            replica="m/1",
            served_names=("m",),
            profile=parse_profile(order.spec.profile),
            port=20_000,
            engine_key="k",
            gpus=order.spec.gpus,
        )
    )
    env = {variable.name: variable.value for variable in launch.env}
    assert env["CUDA_VISIBLE_DEVICES"] == order.spec.gpus[0]
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_card_that_a_stranger_fills_is_left_out_and_its_user_named(node: Node, tmp_path: Path) -> None:
    taken = {"0.memory": "81559 70004 614", "0.proc.0": "C 4242 70000", "process.4242": "train.py --key=x"}
    node.joins(fake_nvml.machine(fake_nvml.card(0)), **taken)
    model()
    tick()
    assert "GPU 0 is used by train.py (pid 4242)" in refusal()
    assert "key" not in refusal()

    node.becomes(fake_nvml.machine(fake_nvml.card(0)))
    tick()
    (order,) = desired_for(node.admission.node_id).shards
    node.machine.write(fake_nvml.machine(fake_nvml.card(0)), **taken)  # comes back between the order and the launch
    config = load(flags={}, environ={"LLMGW_AGENT_STATE_DIR": str(tmp_path)}, path=None)
    profile = parse_profile({**order.spec.profile, "engine": "echo"})
    refused = preflight.check(config, profile, order.spec, node.eyes.look().to_json(), ()).refusal
    assert refused is not None
    assert refused.code == FailureCode.GPU_BUSY
    assert "is used by train.py (pid 4242)" in refused.detail


def test_a_removed_card_fails_its_own_shard_alone(node: Node) -> None:
    node.joins(fake_nvml.dgx_h100())
    model(replicas=2)
    tick()
    first, second = (GpuClaim.objects.get(gpu__index=i).shard for i in (0, 1))
    for shard in (first, second):
        tell(node.admission, shard, ShardState.READY, endpoint="http://127.0.0.1:20000", pids=(1,))
    assert claimed() == [0, 1]
    cards = [fake_nvml.card(i) for i in range(1, 8)]
    left = {f"{i}.{key.partition('.')[2]}": value for i, card in enumerate(cards) for key, value in card.items()}
    node.becomes({"driver": "580.65.06", "count": 7, **left})
    assert "GPU 0 (h100-sxm-80gb, GPU-00000000" in Event.objects.get(kind="gpu_gone").text
    assert Gpu.objects.filter(present=True, placeable=True).count() == 7
    tell(node.admission, first, ShardState.FAILED, code=FailureCode.GPU_MISSING, detail="GPU 0 is gone")
    second.refresh_from_db()
    assert (second.state, second.wanted) == (ShardState.READY, True)
    assert claimed() == [0]  # what was number 1


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        ({"0.memory": "!15"}, "the driver has lost the card"),
        ({"0.power": "!16"}, "the driver asks for a reset of the card"),
        ({"0.ecc_volatile": 1}, "1 uncorrectable memory errors since the driver was loaded"),
        ({"0.handle": "!999"}, "the card does not answer the driver"),
    ],
    ids=["lost", "reset", "ecc", "unknown"],
)
def test_a_sick_card_gets_no_shard_and_says_why(node: Node, fact: dict[str, object], why: str) -> None:
    node.joins(fake_nvml.machine(fake_nvml.card(0)))
    node.becomes(fake_nvml.machine(fake_nvml.card(0)), **fact)
    model()
    tick()
    assert claimed() == []
    assert f"GPU 0 {why}" in refusal()


def test_one_cordoned_card_of_eight_leaves_room_for_four_and_says_why_not_for_eight(node: Node) -> None:
    node.joins(fake_nvml.dgx_h100())
    operations.cordon_gpu(gpu=Gpu.objects.get(index=1), cordoned=True, reason="flaky", actor="ann")
    model("eight", tensor_parallel=8)
    tick()
    assert "7 free h100-sxm-80gb, 8 needed (GPU 1 is cordoned (flaky))" in refusal()
    model("four", tensor_parallel=4)
    tick()
    assert len(claimed()) == 4
    assert 1 not in claimed()


@pytest.mark.parametrize(
    ("fabric", "why"),
    [
        (lambda i: fake_nvml.fabric(i, state=2), "its NVLink fabric is In Progress"),
        (lambda i: fake_nvml.fabric(i, status=23), "its NVLink fabric is Completed, but: Insufficient Resources"),
    ],
    ids=["in progress", "insufficient resources"],
)
def test_no_group_is_placed_on_a_fabric_that_is_not_ready(
    node: Node, fabric: Callable[[int], dict[str, object]], why: str
) -> None:
    node.joins(fake_nvml.dgx_h100() | {key: value for i in range(8) for key, value in fabric(i).items()})
    model("pair", tensor_parallel=2)
    tick()
    assert claimed() == []
    assert "1 free h100-sxm-80gb in one NVLink domain, 2 needed" in refusal()
    assert why in refusal()
    model("one")
    tick()
    assert len(claimed()) == 1
