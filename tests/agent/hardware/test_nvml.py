"""NVML through the real pynvml and a fake library: every figure, and what is sick hides nothing that is well."""

import ctypes
import json
import re
import time
from pathlib import Path

import pynvml
import pytest

from agent_client.hardware import DiscoveryOptions, discovery, nvml, nvml_reader
from agent_client.hardware.nvidia_smi import host_memory
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
    assert [first[f"memory_{name}_mib"] for name in ("total", "used", "reserved")] == [81559, 4, 614]
    assert first["placeable"]
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


@pytest.mark.parametrize("link", [0, 5, 17])
def test_a_link_that_cannot_be_read_hides_none_of_the_others(machine: Machine, link: int) -> None:
    found = machine.read(fake_nvml.dgx_h100(), **{f"3.link.{link}": "!999"})
    assert found.gpus[3]["links"] == {"up": 17, "total": 18}
    assert [each["text"] for each in found.gpus[3]["problems"]] == ["17 of 18 NVLinks are up, 1 does not answer"]
    assert [domain["gpus"] for domain in found.domains] == [list(range(8))]


def test_links_that_may_not_be_read_are_unknown_and_not_absent(machine: Machine) -> None:
    refused = {f"{card}.link.{link}": "!4" for card in range(4) for link in range(18)}
    found = machine.read(fake_nvml.bridged_pairs() | refused)
    assert [(gpu["links"], gpu["domain"], gpu["problems"]) for gpu in found.gpus] == [(None, None, [])] * 4


def test_no_link_up_is_a_fault_where_there_is_a_switch(machine: Machine) -> None:
    found = machine.read(fake_nvml.dgx_h100() | fake_nvml.switch_links(3, down=18))
    assert [(domain["kind"], domain["gpus"]) for domain in found.domains] == [
        ("switch", [0, 1, 2, 4, 5, 6, 7]),
        ("single", [3]),
    ]
    assert [each["text"] for each in found.gpus[3]["problems"]] == ["0 of 18 NVLinks are up"]
    split = {"3.mig_mode": "1 1"}  # the driver takes the links of a card in slices down
    found = machine.read(fake_nvml.dgx_h100() | fake_nvml.switch_links(3, down=18) | split)
    assert "nvlink_down" not in codes(found.gpus[3])
    unbridged = {key: value for i in range(4) for key, value in fake_nvml.peer_links(i, i ^ 1, 12, down=12).items()}
    assert [gpu["problems"] for gpu in machine.read(fake_nvml.bridged_pairs() | unbridged).gpus] == [[]] * 4


def test_a_fabric_that_is_not_ready_splits_its_card_off(machine: Machine) -> None:
    found = machine.read(fake_nvml.dgx_h100() | fake_nvml.fabric(5, state=2) | fake_nvml.fabric(6, status=23))
    assert [domain["gpus"] for domain in found.domains] == [[0, 1, 2, 3, 4, 7], [5], [6]]
    assert codes(found.gpus[5]) == codes(found.gpus[6]) == ["fabric_not_ready"]
    assert found.gpus[5]["problems"][0]["text"] == "its NVLink fabric is In Progress"
    assert found.gpus[6]["problems"][0]["text"] == (
        "its NVLink fabric is Completed, but: Insufficient Resources (NVML error 23)"
    )


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


def test_processes_that_the_driver_tells_of_the_card_belong_to_its_instances(machine: Machine) -> None:
    """With rights enough NVML lists the processes of all instances on the card as well."""
    told = {"0.proc.0": "C 4242 1005 9 0", "0.proc.1": "C 5151 300 7 0", "0.proc.2": "C 6161 20 11 0"}
    card, _, first, second = machine.read(fake_nvml.with_mig(), **told).gpus
    assert [process["pid"] for process in card["processes"]] == [6161]  # of an instance that is not listed
    assert [process["pid"] for process in first["processes"]] == [5151]
    assert [process["pid"] for process in second["processes"]] == [4242]


@pytest.mark.parametrize("name", ["!999", fake_nvml.H100, f"{fake_nvml.H100} MIG ", "MIG"])
def test_an_instance_without_a_readable_name_keeps_its_uuid_and_its_class(machine: Machine, name: str) -> None:
    unit = machine.read(fake_nvml.with_mig(), **{"0.mig.0.name": name}).gpus[2]
    assert (unit["uuid"], unit["placeable"]) == ("MIG-00000000-1111-2222-3333-444444444444", True)
    assert (unit["mig"]["profile"], unit["class"]) == ("1g.10gb", "h100-sxm-80gb-mig-1g.10gb")  # by SMs and memory
    unit = machine.read(fake_nvml.with_mig(), **{"0.mig.0.name": name, "0.mig.0.sms": "!3"}).gpus[2]
    assert (unit["mig"]["profile"], unit["class"], unit["placeable"]) == (None, "h100-sxm-80gb-mig", True)


def test_an_instance_without_a_uuid_is_shown_and_not_placeable(machine: Machine) -> None:
    unit = machine.read(fake_nvml.with_mig(), **{"0.mig.0.uuid": "!999"}).gpus[2]
    assert (unit["uuid"], unit["placeable"], codes(unit)) == (None, False, ["not_answering"])


def test_only_what_looks_like_a_uuid_is_given_to_engines(machine: Machine) -> None:
    for text in ("0", "all", "GPU-1,GPU-2", "x" * 80):
        gpu = machine.read(fake_nvml.dgx_h100(), **{"3.uuid": text}).gpus[3]
        assert (gpu["uuid"], gpu["placeable"]) == (None, False)


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
        ({"3.retired.double": 16, "3.retired.times": "NOW NOW "}, "retired_pages_limit", False),
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
    now = str(int(time.time()))  # not in a test's name: two processes would collect different ones
    told = {key: value.replace("NOW", now) if isinstance(value, str) else value for key, value in facts.items()}
    found = machine.read(fake_nvml.dgx_h100() | told)
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


def test_a_driver_of_460_has_instances_and_no_fabric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library_of_460: Path
) -> None:
    machine = Machine(tmp_path, monkeypatch, library_of_460)
    facts = fake_nvml.with_mig() | fake_nvml.switch_links(1, 12) | {"driver": "470.82.01", "cuda": 11_040}
    found = machine.read(facts, **{"0.proc.0": "C 5151 300 7 0", "1.proc.0": "G 98 4", "1.proc.1": "C 99 -"})
    assert [[process["pid"] for process in gpu["processes"]] for gpu in found.gpus] == [[], [99, 98], [5151], [4242]]
    assert [gpu["memory_reserved_mib"] for gpu in found.gpus] == [None] * 4
    assert [domain["gpus"] for domain in found.domains] == [[0], [1]]
    assert found.gpus[1]["problems"] == []


def test_a_chip_that_shares_the_machines_memory(machine: Machine) -> None:
    facts = fake_nvml.machine(fake_nvml.card(0, "NVIDIA GB10", cc="12.1")) | {"0.memory": "!3", "0.rows": "!3"}
    (gpu,) = machine.read(facts, **{"0.proc.0": "C 4242 5000"}).gpus
    machine_memory = host_memory()
    assert machine_memory is not None
    assert (gpu["class"], gpu["shared_memory"]) == ("gb10-unified", True)
    assert gpu["memory_total_mib"] == machine_memory.total_mib
    assert (gpu["placeable"], [process["memory_mib"] for process in gpu["processes"]]) == (True, [5000])


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
    text = "GPU 2: used by python (pid 4242, 70000 MiB); 70004 MiB are used; end it, or cordon the card"
    assert text in data["warnings"]
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
