"""HCA ports from captured and built trees of /sys/class/infiniband."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_client.hardware import infiniband
from tests.agent.hardware.sysfs import unpack

DATA = Path(__file__).parent / "data" / "sysfs_infiniband"
SAMPLES = sorted(path.stem for path in DATA.glob("*.sysfs"))
ADAPTER_KEYS = ("hca", "bond", "netdev", "transport")  # where an expected port tells something of its adapter


def check_port(adapter: dict[str, Any], port: dict[str, Any], expected: dict[str, Any]) -> None:
    """Every key of the hand-written expectation, in its own spelling."""
    for key, value in expected.items():
        if key == "sm_problem":
            assert ("no_subnet_manager" in [p["code"] for p in port["problems"]]) is value, key
        elif key in ("lid", "sm_lid"):
            assert port[key] == (None if value is None else int(value, 16)), key
        elif key in ADAPTER_KEYS:
            assert adapter[key] == value, key
        else:
            assert port[key] == value, key


@pytest.mark.parametrize("name", SAMPLES)
def test_capture_reads_as_expected(name: str, tmp_path: Path) -> None:
    root = unpack((DATA / f"{name}.sysfs").read_text(), tmp_path / "infiniband")
    expected = json.loads((DATA / f"{name}.expected.json").read_text())
    assert set(expected) <= {"ports", "numa", "note", "ignored"}
    adapters = infiniband.read(root, ())
    ports = {(a["hca"], p["port"]): (a, p) for a in adapters for p in a["ports"]}
    assert sorted(ports) == sorted((e["hca"], e["port"]) for e in expected["ports"])
    for wanted in expected["ports"]:
        check_port(*ports[wanted["hca"], wanted["port"]], wanted)
    for hca, numa in expected.get("numa", {}).items():
        assert next(a["numa"] for a in adapters if a["hca"] == hca) == numa
    assert not {note.partition(":")[0] for note in expected.get("ignored", [])} & {a["hca"] for a in adapters}
