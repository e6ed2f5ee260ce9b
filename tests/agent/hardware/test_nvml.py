"""NVML through the real pynvml and a fake library: every figure, and what is sick hides nothing that is well."""

import ctypes
import json
import re
from pathlib import Path

import pynvml
import pytest

from agent_client.hardware import DiscoveryOptions, discovery, nvml, nvml_reader
from tests.agent.hardware.machine import Machine, codes, needs_gcc
from tests.support import fake_nvml

pytestmark = needs_gcc


def test_a_dgx_h100(machine: Machine) -> None:
    found = machine.read(fake_nvml.dgx_h100())
    assert (found.source, found.driver, found.cuda, found.error) == ("nvml", "580.65.06", "13.0", None)
    assert len(found.gpus) == 8
    first = found.gpus[0]
    assert {key: first[key] for key in ("index", "uuid", "name", "class", "bus", "compute_capability")} == {
        "index": 0,
        "uuid": "GPU-00000000-aaaa-bbbb-cccc-dddddddddddd",
        "name": "NVIDIA H100 80GB HBM3",
        "class": "h100-sxm-80gb",
        "bus": "0000:18:00.0",
        "compute_capability": "9.0",
    }
    assert (first["memory_total_mib"], first["memory_used_mib"], first["placeable"]) == (81559, 4, True)
    assert (first["links"], first["mig"], first["problems"]) == ({"up": 18, "total": 18}, None, [])
    assert first["sensors"] == {
        "power_watts": 71.0,
        "power_limit_watts": 700.0,
        "temperature_celsius": 31,
        "utilisation_percent": 0,
        "persistence": 1,
    }
    assert found.domains == [
        {"id": "nvswitch", "gpus": list(range(8)), "kind": "switch", "cluster": None, "clique": None}
    ]
    assert {gpu["domain"] for gpu in found.gpus} == {"nvswitch"}
    json.dumps(found.gpus)


def test_two_bridged_pairs_and_cards_without_nvlink(machine: Machine) -> None:
    found = machine.read(fake_nvml.bridged_pairs())
    assert [(domain["kind"], domain["gpus"]) for domain in found.domains] == [("bridge", [0, 1]), ("bridge", [2, 3])]
    assert found.gpus[0]["class"] == "h100-nvl-94gb"
    found = machine.read(fake_nvml.pcie_only())
    assert [(domain["kind"], domain["gpus"]) for domain in found.domains] == [("single", [i]) for i in range(4)]
    assert len({gpu["domain"] for gpu in found.gpus}) == 4


def test_a_bridge_that_is_half_down_is_a_warning(machine: Machine) -> None:
    found = machine.read(fake_nvml.bridged_pairs() | fake_nvml.peer_links(0, 1, 12, down=6))
    assert codes(found.gpus[0]) == ["nvlink_down"]
    assert "6 of 12 NVLinks are up" in found.gpus[0]["problems"][0]["text"]
    assert found.gpus[0]["placeable"]


def test_a_fabric_that_is_not_ready_splits_its_card_off(machine: Machine) -> None:
    found = machine.read(fake_nvml.dgx_h100() | fake_nvml.fabric(5, state=2) | fake_nvml.fabric(6, status=999))
    assert [domain["gpus"] for domain in found.domains] == [[0, 1, 2, 3, 4, 7], [5], [6]]
    assert codes(found.gpus[5]) == codes(found.gpus[6]) == ["fabric_not_ready"]
    assert "In Progress" in found.gpus[5]["problems"][0]["text"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_rack_spans_nodes_whatever_the_driver_calls_it(machine: Machine, version: int) -> None:
    found = machine.read(fake_nvml.gb200_rack(), fabric_version=version)
    (domain,) = found.domains
    assert (domain["kind"], domain["clique"]) == ("rack", 32766)
    assert domain["cluster"] == "4f0e7a5c-1d2b-4396-8a7b-0c1d2e3f4a5b"
    assert {gpu["domain"] for gpu in found.gpus} == {"4f0e7a5c-1d2b-4396-8a7b-0c1d2e3f4a5b.32766"}


def test_mig_devices_are_units_and_their_card_is_not(machine: Machine) -> None:
    found = machine.read(fake_nvml.with_mig())
    assert [(gpu["index"], gpu["class"], gpu["placeable"]) for gpu in found.gpus] == [
        (0, "h100-sxm-80gb", False),
        (1, "h100-sxm-80gb", True),
        (2, "h100-sxm-80gb-mig-1g.10gb", True),
        (3, "h100-sxm-80gb-mig-1g.10gb", True),
    ]
    unit = found.gpus[3]
    assert unit["uuid"].startswith("MIG-00000002")
    assert (unit["memory_total_mib"], unit["mig"]["parent"], unit["mig"]["gi"]) == (9984, found.gpus[0]["uuid"], 9)
    assert [(each["pid"], each["name"], each["memory_mib"]) for each in unit["processes"]] == [
        (4242, "/usr/bin/python", 1005)
    ]


@pytest.mark.parametrize(
    ("facts", "code", "placeable"),
    [
        ({"3.rows": "0 1 1 0"}, "row_remap_pending", True),
        ({"3.rows": "0 1 0 1"}, "row_remap_failed", False),
        ({"3.ecc_volatile": 2}, "ecc_uncorrectable", False),
        ({"3.field.230": 1}, "reset_required", False),
        ({"3.throttle": 0x48}, "hw_thermal", True),
        ({"3.throttle": 0x80}, "power_brake", True),
        ({"3.mig_mode": "0 1"}, "mig_pending", True),
        ({"3.retired.double": 63, "3.retired.single": 0}, "retired_pages_limit", False),
        ({"3.retired.pending": 1}, "retired_pages_pending", True),
        ({"3.memory": "!15"}, "lost", False),
        ({"3.power": "!16"}, "reset_required", False),
        ({"3.handle": "!15"}, "lost", False),
        ({"3.handle": "!4"}, "no_permission", False),
        ({"3.handle": "!999"}, "not_answering", False),
        ({"3.uuid": "!999"}, "not_answering", False),
    ],
    ids=lambda value: str(value) if isinstance(value, str | dict) else None,
)
def test_one_sick_card_hides_no_other(machine: Machine, facts: dict[str, object], code: str, placeable: bool) -> None:
    found = machine.read(fake_nvml.dgx_h100() | facts)
    assert len(found.gpus) == 8
    assert code in codes(found.gpus[3])
    assert found.gpus[3]["placeable"] is placeable
    assert all(gpu["placeable"] and not gpu["problems"] for gpu in found.gpus if gpu["index"] != 3)


@pytest.mark.parametrize("name", [key.removeprefix("3.") for key in fake_nvml.card(3)])
def test_each_figure_may_be_missing(machine: Machine, name: str) -> None:
    errors = {f"{index}.{name}": error for index, error in enumerate(("!3", "!4", "!13", "!999"))}
    found = machine.read(fake_nvml.machine(*(fake_nvml.card(i) for i in range(5))) | errors)
    assert len(found.gpus) == 5
    for gpu in found.gpus[:4]:
        if name == "memory":
            assert (gpu["memory_total_mib"], gpu["memory_used_mib"]) == (None, None)
        if name == "cc":
            assert gpu["compute_capability"] in (None, "9.0")  # known by the name
        assert gpu["placeable"] is (name != "uuid")


def test_an_absent_figure_is_not_zero_and_names_need_not_be_text(machine: Machine) -> None:
    facts = fake_nvml.machine(fake_nvml.card(0)) | {"0.proc.0": "C 99 -", "0.proc.1": "G 98 4", "0.proc.2": "C 98 7"}
    fake_nvml.write(machine.file, facts)
    machine.file.write_bytes(machine.file.read_bytes() + b"process.99 \xff\xfe\n")
    (gpu,) = nvml.read().gpus
    by_pid = {each["pid"]: each for each in gpu["processes"]}
    assert (by_pid[99]["memory_mib"], by_pid[99]["name"]) == (None, None)
    assert (by_pid[98]["memory_mib"], set(by_pid[98]["type"].split("+"))) == (7, {"C", "G"})


def test_an_old_driver_without_newer_symbols(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library_of_440: Path
) -> None:
    machine = Machine(tmp_path, monkeypatch, library_of_440)
    links = fake_nvml.peer_links(0, 1) | fake_nvml.peer_links(1, 0)
    cards = [fake_nvml.card(i, "Tesla V100-SXM2-16GB", "16160 3", "7.0") for i in range(2)]
    found = machine.read(fake_nvml.machine(*cards, driver="440.33", cuda=10_020) | links, **{"0.proc.0": "C 77 500"})
    assert found.cuda == "10.2"
    assert [gpu["memory_total_mib"] for gpu in found.gpus] == [16160, 16160]
    assert [(each["pid"], each["memory_mib"]) for each in found.gpus[0]["processes"]] == [(77, 500)]
    assert [(domain["kind"], domain["gpus"]) for domain in found.domains] == [("bridge", [0, 1])]
    assert found.gpus[0]["problems"] == []


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"init": "!9"}, "fake error 9|Driver Not Loaded"),
        ({"init": "!18"}, "cannot read GPUs from NVML"),
        ({"count": "!999"}, "cannot"),
    ],
)
def test_a_driver_that_fails_says_so(machine: Machine, facts: dict[str, object], says: str) -> None:
    found = machine.read(fake_nvml.dgx_h100() | facts)
    assert (found.source, found.gpus) == ("unavailable", [])
    assert re.search(says, found.error or "")


def test_without_the_library_there_is_nothing_to_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = nvml.read()
    assert (found.source, found.error) == ("none", None)


def test_discovery_prefers_nvml_and_says_what_others_use(machine: Machine, tmp_path: Path) -> None:
    facts = fake_nvml.dgx_h100() | {"2.proc.0": "C 4242 70000", "process.4242": "python", "2.memory": "81559 70004 614"}
    fake_nvml.write(machine.file, facts)
    (tmp_path / "ib").mkdir()
    options = DiscoveryOptions(node_id="n", ib_root=tmp_path / "ib", kernel_log=tmp_path / "none", expect_gpus=8)
    eyes = discovery.Discovery(options)
    data = eyes.look().to_json()
    assert (data["source"], data["driver"]) == ("nvml", "580.65.06")
    assert codes(data["gpus"][2]) == ["foreign_process"]
    assert "GPU 2: used by python (pid 4242, 70000 MiB); 70004 MiB are used" in data["warnings"]
    assert not any("topology" in text for text in data["warnings"])
    fake_nvml.write(machine.file, facts | {"count": 0})
    broken = eyes.look().to_json()
    assert broken["source"] == "unavailable"
    assert "detection is broken: 8 GPUs were there" in broken["error"]
    assert [gpu["placeable"] for gpu in broken["gpus"]] == [False] * 8
    fake_nvml.write(machine.file, facts)
    eyes.look()
    assert eyes.look().to_json()["gpus"][0]["placeable"]


def test_a_fatal_xid_forbids_its_card_alone(machine: Machine, tmp_path: Path) -> None:
    facts = fake_nvml.dgx_h100() | {"1.field.230": "!3"}
    fake_nvml.write(machine.file, facts)
    (tmp_path / "kmsg").write_text("3,1,1,-;NVRM: Xid (PCI:0000:29:00): 119, pid=7, Timeout waiting for RPC\n")
    options = DiscoveryOptions(node_id="n", ib_root=tmp_path / "ib", kernel_log=tmp_path / "kmsg")
    data = discovery.discover(options).to_json()
    assert [gpu["placeable"] for gpu in data["gpus"]] == [True, False, *[True] * 6]
    assert codes(data["gpus"][1]) == ["xid"]


STRUCTS = (
    *("nvmlPciInfo_t", "c_nvmlMemory_t", "c_nvmlMemory_v2_t", "c_nvmlUtilization_t", "c_nvmlFieldValue_t"),
    *("c_nvmlProcessInfo_v2_t", "c_nvmlProcessInfo_v3_t", "c_nvmlDeviceAttributes"),
    *("c_nvmlGpuFabricInfo_t", "c_nvmlGpuFabricInfo_v2_t", "c_nvmlGpuFabricInfo_v3_t"),
)


def test_the_fake_lays_its_answers_out_as_pynvml_reads_them(library: Path) -> None:
    size = ctypes.CDLL(str(library / "libnvidia-ml.so.1")).fake_size
    for name in STRUCTS:
        assert size(name.encode()) == ctypes.sizeof(getattr(pynvml, name)), name
    assert size(b"OldProcess") == ctypes.sizeof(nvml_reader.OldProcess)
