"""`inventory` as people and programs meet it: the table, the JSON and its page in docs/, whatever is missing."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_client.hardware import cli
from agent_client.hardware.problems import PROBLEMS
from tests.agent.hardware import sysfs
from tests.e2e.harness import OURS, ROOT
from tests.support import fake_nvml

PAGE = (ROOT / "docs" / "inventory.md").read_text(encoding="utf-8")
CAPTURE = Path(__file__).parent / "data" / "sysfs_infiniband" / "h100_8xib_plus_bond.sysfs"
needs_gcc = pytest.mark.skipif(not fake_nvml.available(), reason="gcc is needed to build the fake library")


class Machine:
    def __init__(self, folder: Path, facts: dict[str, object] | None) -> None:
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}
        self.ib_root = sysfs.unpack(CAPTURE.read_text(errors="surrogateescape"), folder / "ib")
        if facts is not None:
            self.env |= fake_nvml.environment(
                fake_nvml.build(folder / "library"), fake_nvml.write(folder / "facts", facts)
            )
        self.config = folder / "agent.yaml"
        self.config.write_text(f"ib_root: {self.ib_root}\nfabrics: [{{name: ib-east, hcas: ['mlx5_[0-3]']}}]\n")

    def inventory(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "agent_client", "inventory", "--config", str(self.config), *words]
        return subprocess.run(argv, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=50)

    def data(self, *words: str) -> Any:
        return json.loads(self.inventory("--json", *words).stdout)


def keys(heading: str) -> set[str]:
    """The keys that a section of the page explains."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`([^`]+)`", row)}


@needs_gcc
def test_the_page_explains_every_key_and_every_code(tmp_path: Path) -> None:
    data = Machine(tmp_path, fake_nvml.with_mig()).data()
    assert keys("Top") == set(data)
    for heading, entries in (
        ("Each of `gpus`", data["gpus"]),
        ("Each of `domains`", data["domains"]),
        ("Each of `adapters`", data["adapters"]),
        ("Each of `ports`", [port for adapter in data["adapters"] for port in adapter["ports"]]),
    ):
        assert keys(heading) == set().union(*entries), heading
    assert keys("Problem codes") == set(PROBLEMS)
    for code, rule in PROBLEMS.items():
        assert f"| `{code}` | {rule.severity} | {rule.source} |" in PAGE


@needs_gcc
def test_every_source_gives_the_same_keys(tmp_path: Path) -> None:
    machine = Machine(tmp_path, fake_nvml.dgx_h100())
    smi = tmp_path / "nvidia-smi"
    report = Path(__file__).parent / "data" / "nvidia_smi" / "h100x8_580.xml"
    smi.write_text(f"#!/bin/sh\ncase \"$*\" in '-q -x') cat {report};; *) exit 2;; esac\n")
    smi.chmod(0o755)
    nvml, other = machine.data(), machine.data("--nvidia-smi", str(smi))
    assert (nvml["source"], other["source"]) == ("nvml", "nvidia-smi")
    assert set(nvml["gpus"][0]) == set(other["gpus"][0])
    assert any("topology unknown (needs NVML)" in text for text in other["warnings"])


@needs_gcc
def test_a_slice_says_of_which_card_it_is(tmp_path: Path) -> None:
    lines = Machine(tmp_path, fake_nvml.with_mig()).inventory().stdout.splitlines()
    assert [line.rpartition("  ")[2].strip() for line in lines if "MIG 1g.10gb" in line] == ["part of GPU 0"] * 2
    assert "split (MIG)" in next(line for line in lines if line.startswith("0 "))


def test_a_table_without_cards_says_where_was_looked(tmp_path: Path) -> None:
    machine = Machine(tmp_path, None)
    machine.env |= {"PATH": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}
    assert "no GPUs: NVML, nvidia-smi, amd-smi and rocm-smi are not here" in machine.inventory().stdout
    assert "no GPUs: nvidia-smi, amd-smi and rocm-smi are not here" in machine.inventory("--no-nvml").stdout
    assert "no GPUs were looked for (--no-gpu)" in machine.inventory("--no-gpu").stdout


def test_what_only_calls_itself_infiniband_is_told_apart(tmp_path: Path) -> None:
    machine = Machine(tmp_path, None)
    capture = CAPTURE.with_name("hfi1_opa_plus_mlx4_2port.sysfs").read_text(errors="surrogateescape")
    root = sysfs.unpack(capture, tmp_path / "opa")
    lines = machine.inventory("--no-gpu", "--ib-root", str(root)).stdout.splitlines()
    assert "InfiniBand (Omni-Path)" in next(line for line in lines if line.startswith("hfi1_0"))
    assert "Omni-Path" not in next(line for line in lines if line.startswith("mlx4_0"))


@needs_gcc
def test_the_table_shows_what_placement_would_see(tmp_path: Path) -> None:
    machine = Machine(tmp_path, fake_nvml.dgx_h100() | {"3.memory": "!15"})
    done = machine.inventory()
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    head, healthy, lost = (next(line for line in lines if line.startswith(start)) for start in ("IDX", "0 ", "3 "))
    assert head.split() == ["IDX", "CLASS", "NAME", "MEM", "CC", "HEALTH", "DOMAIN"]
    assert healthy.index("ok") == lost.index("unplaceable: lost") == head.index("HEALTH")
    assert "classes: h100-sxm-80gb" in lines
    assert any(re.match(r"mlx5_0 +1 +ACTIVE +400 Gb/s \(4X NDR\) +InfiniBand", line) for line in lines)
    assert "warning: GPU 3: the driver has lost the card; reboot; if it comes back, reseat or replace it" in lines
    assert "\x1b" not in done.stdout


def test_failing_discovery_still_shows_the_adapters(tmp_path: Path) -> None:
    done = Machine(tmp_path, None).inventory("--nvidia-smi", "/missing")
    assert done.returncode == 0
    assert done.stderr.startswith("cannot read GPUs from /missing: ")
    assert "GPU source: unavailable" in done.stdout
    assert "mlx5_0" in done.stdout
    assert "no adapters" in Machine(tmp_path, None).inventory("--no-gpu", "--ib-root", str(tmp_path / "none")).stdout


def test_a_folder_of_adapters_that_is_not_there_is_told(tmp_path: Path) -> None:
    done = Machine(tmp_path, None).inventory("--no-gpu", "--ib-root", str(tmp_path / "nowhere"))
    assert (done.returncode, "no adapters" in done.stdout) == (0, True)
    nowhere = tmp_path / "nowhere"
    assert done.stderr == f"cannot read adapters from {nowhere}: it is no folder; give one as --ib-root\n"


@needs_gcc
def test_no_name_reaches_the_terminal_as_a_command_to_it(tmp_path: Path) -> None:
    """Whoever runs a process chooses its name."""
    machine = Machine(tmp_path, fake_nvml.machine(fake_nvml.card(0)) | {"0.proc.0": "C 4242 900"})
    machine.env["FAKE_NVML"] = str(tmp_path / "named")
    facts = (tmp_path / "facts").read_bytes() + b"process.4242 \x1b]0;owned\x07\x1b[2Jx\n"
    (tmp_path / "named").write_bytes(facts)
    shown = machine.inventory().stdout
    assert "(pid 4242" in shown
    assert all(char.isprintable() or char == "\n" for char in shown)
    tool = tmp_path / "smi"
    tool.write_text("#!/bin/sh\nprintf '\\033[31mNVIDIA-SMI has failed\\033[0m\\007\\n'; exit 9\n")
    tool.chmod(0o755)
    done = machine.inventory("--nvidia-smi", str(tool))
    assert "NVIDIA-SMI has failed" in done.stderr
    assert all(char.isprintable() or char == "\n" for char in done.stderr)


def test_colour_is_for_trouble_alone() -> None:
    gpu = {"index": 0, "class": "c", "name": "n", "memory_total_mib": 10, "memory_used_mib": 0, "shared_memory": False}
    gpu |= {"compute_capability": None, "domain": None, "problems": [], "uuid": "GPU-1", "mig": None}
    gpu |= {"mig_mode": None, "placeable": True}
    bad = {**gpu, "index": 1, "problems": [{"code": "lost", "severity": "unplaceable", "text": "", "hint": ""}]}
    odd = {**gpu, "index": 2, "problems": [{"code": "hw_slowdown", "severity": "warning", "text": "", "hint": ""}]}
    top = {"node_id": "n", "source": "nvml", "driver": None, "cuda": None, "warnings": [], "adapters": []}
    lines = cli.render({**top, "gpus": [gpu, bad, odd]}, colour=True).splitlines()
    assert [line[:5] for line in lines[3:6]] == ["0    ", "\x1b[31m", "\x1b[33m"]
    assert "\x1b" not in cli.render({**top, "gpus": [gpu, bad, odd]})
