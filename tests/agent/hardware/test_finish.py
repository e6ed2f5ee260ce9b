"""What is added to every source's cards: NUMA node, a process's user, foreign use, the owner's class and severities."""

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from agent_client.hardware.cards import Found, Process, Seen, build
from agent_client.hardware.finish import finish, numa_node, user_of
from agent_client.hardware.health import Figures, problem
from agent_client.hardware.mig import SeenMig, units
from agent_client.hardware.nvidia_list import ListedMig


def card(**fields: Any) -> dict[str, Any]:
    known = {"index": 0, "uuid": "GPU-1", "name": "NVIDIA H200", "bus": "0000:1b:00.0", "memory_total_mib": 143771}
    return build(Seen(**(known | fields)))


def finished(*gpus: dict[str, Any], tmp_path: Path, **rules: Any) -> list[dict[str, Any]]:
    return finish(Found(source="x", gpus=list(gpus)), pci=tmp_path, proc=tmp_path, **rules).gpus


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("0", 0), ("-1\n", None), ("", None), ("x", None), ("٣", None)])
def test_the_numa_node_of_sysfs(text: str, node: int | None, tmp_path: Path) -> None:
    (tmp_path / "0000:1b:00.0").mkdir()
    (tmp_path / "0000:1b:00.0" / "numa_node").write_text(text)
    assert numa_node("0000:1b:00.0", tmp_path) == node
    assert finished(card(), tmp_path=tmp_path)[0]["numa"] == node


def test_a_numa_node_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert numa_node("0000:1b:00.0", tmp_path) is None
    assert numa_node(None, tmp_path) is None
    (tmp_path / "0000:1b:00.0" / "numa_node").mkdir(parents=True)
    assert numa_node("0000:1b:00.0", tmp_path) is None


def test_the_user_is_told_only_if_the_pid_is_that_program_here(tmp_path: Path) -> None:
    (tmp_path / "41").mkdir()
    (tmp_path / "41" / "cmdline").write_bytes(b"/opt/bin/python\0-m\0vllm\0")
    me = pwd.getpwuid(os.getuid()).pw_name
    assert user_of(41, "python", tmp_path) == me
    assert user_of(41, "/usr/bin/python", tmp_path) == me
    assert user_of(41, "Xorg", tmp_path) is None  # the same number in another machine's or container's view
    assert user_of(42, "python", tmp_path) is None
    assert user_of(None, "python", tmp_path) is None
    assert user_of(41, None, tmp_path) is None
    (tmp_path / "41" / "cmdline").write_bytes(b"")  # a kernel thread
    assert user_of(41, "python", tmp_path) is None


def test_foreign_use_is_marked_on_the_process_and_on_the_card(tmp_path: Path) -> None:
    seen = card(
        memory_used_mib=1032,
        processes=(Process(pid=675, type="G", memory_mib=22), Process(pid=5762, type="C", memory_mib=1005)),
    )
    named = card(memory_used_mib=1032, processes=(Process(pid=5762, name="train", type="C", memory_mib=1005),))
    (gpu,) = finished(seen, tmp_path=tmp_path)
    assert [process["foreign"] for process in gpu["processes"]] == [False, True]
    assert [each["code"] for each in gpu["problems"]] == ["foreign_process"]
    (tmp_path / "5762").mkdir()
    (tmp_path / "5762" / "cmdline").write_bytes(b"/opt/train\0")
    (gpu,) = finished(named, tmp_path=tmp_path)
    me = pwd.getpwuid(os.getuid()).pw_name
    assert gpu["problems"][0]["text"] == f"used by train (pid 5762 of {me}, 1005 MiB); 1032 MiB are used"
    (gpu,) = finished(seen, tmp_path=tmp_path, owned_pids={5762})
    assert [process["foreign"] for process in gpu["processes"]] == [False, False]
    assert (gpu["problems"], gpu["placeable"]) == ([], True)


def test_used_memory_of_a_shared_machine_is_not_held_by_ghosts(tmp_path: Path) -> None:
    shared = {**card(name="NVIDIA GB10", memory_total_mib=None), "memory_total_mib": 124610, "memory_used_mib": 90000}
    assert finished(shared, tmp_path=tmp_path)[0]["problems"] == []
    assert [p["code"] for p in finished(card(memory_used_mib=90000), tmp_path=tmp_path)[0]["problems"]] == [
        "memory_held"
    ]


def test_what_the_slices_of_a_card_use_is_not_held_on_the_card(tmp_path: Path) -> None:
    split = card(figures=Figures(mig_current="Enabled"), memory_used_mib=60_000)
    assert finished(split, tmp_path=tmp_path)[0]["problems"] == []


def test_severities_decide_whether_a_card_is_placeable(tmp_path: Path) -> None:
    pending, failed = card(figures=Figures(remap_pending=True)), card(figures=Figures(remap_failed=True))
    assert [gpu["placeable"] for gpu in finished(pending, failed, tmp_path=tmp_path)] == [True, False]
    rules = {"row_remap_pending": "unplaceable", "row_remap_failed": "warning"}
    assert [gpu["placeable"] for gpu in finished(pending, failed, tmp_path=tmp_path, severities=rules)] == [False, True]
    found = Found(source="x", problems=[problem("missing_card", "one is missing")])
    assert finish(found, severities={"missing_card": "unplaceable"}).problems[0]["severity"] == "unplaceable"


def test_no_severity_makes_a_split_or_nameless_card_placeable(tmp_path: Path) -> None:
    everything = dict.fromkeys(("not_answering", "mig_empty"), "ignore")
    split, nameless = card(figures=Figures(mig_current="Enabled")), card(uuid=None)
    gpus = finished(split, nameless, tmp_path=tmp_path, severities=everything)
    assert [(gpu["placeable"], gpu["problems"]) for gpu in gpus] == [(False, []), (False, [])]


def test_the_owners_class_holds_for_the_card_and_its_slices(tmp_path: Path) -> None:
    parent = card(figures=Figures(mig_current="Enabled"))
    listed = [ListedMig(device=0, profile="1g.18gb", uuid="MIG-1")]
    own = units(parent, [SeenMig(device=0, memory_total_mib=16384)], listed, first_index=1)

    def classes(*overrides: tuple[str, str]) -> list[str]:
        return [gpu["class"] for gpu in finished(parent, *own, tmp_path=tmp_path, overrides=overrides)]

    assert classes() == ["h200-sxm-141gb", "h200-sxm-141gb-mig-1g.18gb"]
    assert classes((r"NVIDIA H200", "lab-h200")) == ["lab-h200", "lab-h200-mig-1g.18gb"]
    assert classes((r"Tesla T4", "lab-t4")) == classes()


def test_in_a_container_what_cannot_be_seen_on_our_own_card_is_ours(tmp_path: Path) -> None:
    """The driver tells the host's pids, or none at all."""
    (tmp_path / "77").mkdir()
    hidden, seen = Process(pid=901_234, type="C", memory_mib=70_000), Process(pid=77, type="C", memory_mib=100)
    own = card(processes=(hidden,), memory_used_mib=70_500)
    (gpu,) = finished(own, tmp_path=tmp_path, owned_gpus={"GPU-1"})
    assert gpu["problems"] == []
    (gpu,) = finished(card(memory_used_mib=70_500), tmp_path=tmp_path, owned_gpus={"GPU-1"})
    assert gpu["problems"] == []
    (gpu,) = finished(card(processes=(hidden, seen)), tmp_path=tmp_path, owned_gpus={"GPU-1"})
    assert [each["foreign"] for each in gpu["processes"]] == [False, True]  # a stranger that can be seen is one
    (gpu,) = finished(own, tmp_path=tmp_path)
    assert [each["code"] for each in gpu["problems"]] == ["foreign_process"]
    (gpu,) = finished(card(memory_used_mib=70_500), tmp_path=tmp_path)
    assert [each["code"] for each in gpu["problems"]] == ["memory_held"]
