"""API and admin show what the agent saw, in its own words; a changed machine is known after its next registration."""

import dataclasses
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from agent_client.protocol import messages
from fleet.models import Adapter, Gpu
from fleet.models import Node as NodeRow
from tests.agent.hardware import sysfs
from tests.agent.hardware.machine import Machine, needs_gcc
from tests.fleet.test_sick_hardware import Node
from tests.support import fake_nvml

pytestmark = [pytest.mark.django_db, needs_gcc]
CAPTURE = Path(sysfs.__file__).parent / "data" / "sysfs_infiniband" / "h100_8xib_plus_bond.sysfs"
FABRICS = (("ib-east", ("mlx5_[0-3]",)), ("ib-west", ("mlx5_[4-9]",)))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    ib_root = sysfs.unpack(CAPTURE.read_text(errors="surrogateescape"), tmp_path / "infiniband")
    machine = Machine(tmp_path, monkeypatch, fake_nvml.build(tmp_path / "library"))
    return Node(tmp_path, machine, ib_root=ib_root, fabrics=FABRICS)


def page(client: Client) -> str:
    return client.get(reverse("admin:fleet_node_change", args=[NodeRow.objects.get().pk])).content.decode()


def test_api_and_admin_show_what_the_agent_saw(node: Node, admin_client: Client) -> None:
    node.joins(fake_nvml.dgx_h100(), **{"3.memory": "!15"})
    seen = node.seen
    (told,) = admin_client.get("/api/v1/nodes/").json()["results"]
    assert told["inventory"] == seen
    for card, row in zip(seen["gpus"], sorted(told["gpus"], key=lambda each: each["index"]), strict=True):
        same = ("uuid", "index", "name", "memory_total_mib", "domain", "placeable", "problems")
        assert {key: row[key] for key in same} == {key: card[key] for key in same}
        assert row["gpu_class"] == card["class"]
    text = page(admin_client)
    for words in ("h100-sxm-80gb", "nvswitch", "the driver has lost the card", "mlx5_9", "400 Gb/s"):
        assert words in text
    assert "fabric ib-east: adapters mlx5_2 and mlx5_3 are not there" in text


def test_fabric_labels_arrive_as_the_node_gave_them(node: Node, admin_client: Client) -> None:
    node.joins(fake_nvml.dgx_h100())
    labels = dict(Adapter.objects.values_list("hca", "fabric__name"))
    assert labels == {
        **dict.fromkeys(("mlx5_0", "mlx5_1"), "ib-east"),
        **{f"mlx5_{number}": "ib-west" for number in range(4, 10)},
        "mlx5_bond_0": None,
    }
    assert "ib-west" in page(admin_client)


def test_a_machine_that_changed_is_known_when_it_registers_again(node: Node, admin_client: Client) -> None:
    node.joins(fake_nvml.dgx_h100())
    node.joins(fake_nvml.pcie_only())
    assert set(Gpu.objects.filter(present=True).values_list("gpu_class", flat=True)) == {"l40s-48gb"}
    text = page(admin_client)
    assert "l40s-48gb" in text
    (told,) = admin_client.get("/api/v1/nodes/").json()["results"]
    assert {gpu["gpu_class"] for gpu in told["gpus"] if gpu["present"]} == {"l40s-48gb"}


def test_hardware_is_told_at_registration_and_in_reports_and_asked_for_by_no_call() -> None:
    carrying = {
        message.TYPE
        for message in (*messages.FROM_AGENT, *messages.FROM_SERVER)
        if "inventory" in {field.name for field in dataclasses.fields(message)}
    }
    assert carrying == {"register", "report"}
