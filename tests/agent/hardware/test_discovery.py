"""Which source is asked and believed: NVML, nvidia-smi, AMD's tools, and what is said when none of them answers."""

from pathlib import Path

import pytest

from agent_client.hardware import Discovery, DiscoveryOptions
from agent_client.hardware.inventory import Inventory
from tests.agent.hardware.machine import Machine, codes, needs_gcc
from tests.support import fake_nvml

AMD = Path(__file__).parent / "data" / "amd" / "amd_smi_static_mi300x_gpu_data.json"
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


class Tools:
    """The programs on this machine's path, and no others."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        monkeypatch.setenv("PATH", str(self.folder))

    def has(self, name: str, script: str) -> Path:
        program = self.folder / name
        program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        program.chmod(0o755)
        return program

    def has_amd(self) -> None:
        self.has("amd-smi", f'[ "$1" = static ] && exec cat {AMD}; exit 1')


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "no-library"))
    return Tools(tmp_path, monkeypatch)


def look(folder: Path, **options: object) -> Inventory:
    return Discovery(eyes(folder, **options)).look()


def eyes(folder: Path, **options: object) -> DiscoveryOptions:
    given = {"node_id": "n", "ib_root": folder / "no-ib", "kernel_log": folder / "no-log", **options}
    return DiscoveryOptions(**given)  # type: ignore[arg-type]


def test_a_machine_without_any_tool_has_no_gpus_and_no_error(tmp_path: Path, tools: Tools) -> None:
    data = look(tmp_path).to_json()
    assert (data["source"], data["error"], data["gpus"]) == ("none", None, [])


def test_a_machine_with_amd_tools_alone(tmp_path: Path, tools: Tools) -> None:
    tools.has_amd()
    data = look(tmp_path).to_json()
    assert data["source"] == "amd-smi"
    assert {gpu["class"] for gpu in data["gpus"]} == {"mi300x-oam-192gb"}


@needs_gcc
def test_what_nvidia_left_behind_hides_no_amd_card(tmp_path: Path, tools: Tools, machine: Machine) -> None:
    """The library, its tool or both, without a driver."""
    tools.has_amd()
    machine.write({"init": "!9"})
    assert look(tmp_path).to_json()["source"] == "amd-smi"
    tools.has("nvidia-smi", f'echo "{NO_DRIVER}"; exit 9')
    assert look(tmp_path).to_json()["source"] == "amd-smi"


def test_a_left_over_nvidia_smi_hides_no_amd_card(tmp_path: Path, tools: Tools) -> None:
    tools.has_amd()
    tools.has("nvidia-smi", f'echo "{NO_DRIVER}"; exit 9')
    data = look(tmp_path).to_json()
    assert (data["source"], len(data["gpus"]) > 0) == ("amd-smi", True)


@needs_gcc
def test_the_first_error_is_told_where_nothing_answers(tmp_path: Path, tools: Tools, machine: Machine) -> None:
    machine.write({"init": "!9"})
    data = look(tmp_path).to_json()
    assert (data["source"], data["error"]) == (
        "unavailable",
        "cannot read GPUs from NVML: the NVIDIA driver does not answer (Driver Not Loaded); load it (modprobe nvidia), "
        "and look into dmesg if that fails",
    )
    tools.has("nvidia-smi", f'echo "{NO_DRIVER}"; exit 9')
    tools.has("amd-smi", "echo cannot open /dev/kfd >&2; exit 1")
    assert look(tmp_path).to_json()["error"] == data["error"]


def test_a_severity_of_no_code_is_told(tmp_path: Path, tools: Tools) -> None:
    warnings = look(tmp_path, severities={"row_remap_pendin": "ignore", "lost": "warning"}).to_json()["warnings"]
    assert [text for text in warnings if "severities" in text] == [
        "agent.yaml: severities.row_remap_pendin is no problem's code; did you mean row_remap_pending?"
    ]


def test_a_program_named_by_hand_is_asked_alone(tmp_path: Path, tools: Tools) -> None:
    tools.has_amd()
    broken = tools.has("other-smi", f'echo "{NO_DRIVER}"; exit 9')
    data = look(tmp_path, nvidia_smi=str(broken)).to_json()
    assert (data["source"], data["gpus"]) == ("unavailable", [])


@needs_gcc
def test_all_cards_gone_at_once_is_broken_detection_with_its_reason(
    tmp_path: Path, tools: Tools, machine: Machine
) -> None:
    machine.write(fake_nvml.dgx_h100())
    discovery = Discovery(eyes(tmp_path))
    discovery.look()
    machine.write({"init": "!18"})
    data = discovery.look().to_json()
    assert [codes(gpu) for gpu in data["gpus"]] == [["detection_broken"]] * 8
    assert "RM has detected an NVML/RM version mismatch" in data["gpus"][0]["problems"][0]["text"]
    assert data["error"].startswith("cannot read GPUs from NVML")


@needs_gcc
def test_one_silent_card_does_not_make_the_topology_unknown(tmp_path: Path, machine: Machine) -> None:
    machine.write(fake_nvml.dgx_h100(), **{"3.handle": "!15", "5.handle": "!999"})
    assert not any("topology" in text for text in look(tmp_path).to_json()["warnings"])
