"""A fake libnvidia-ml.so.1, built with gcc and loaded by the real pynvml; scenarios are files of facts."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
H100 = "NVIDIA H100 80GB HBM3"
CLUSTER = "4f0e7a5c1d2b43968a7b0c1d2e3f4a5b"


def build(folder: Path, *flags: str) -> Path:
    """The folder for LD_LIBRARY_PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "libnvidia-ml.so.1").write_bytes(compiled(*flags))
    return folder


@cache
def compiled(*flags: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "library"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", *flags, "-o", str(target), str(SOURCE)], check=True)
        return target.read_bytes()


def available() -> bool:
    return shutil.which("gcc") is not None


def environment(library: Path, scenario: Path) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(scenario)}


def write(path: Path, facts: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{key} {value}\n" for key, value in facts.items()))
    return path


def bus(index: int) -> str:
    return f"00000000:{0x18 + 0x11 * index:02X}:00.0"


def card(index: int, name: str = H100, memory: str = "81559 4 614", cc: str = "9.0") -> dict[str, object]:
    """A healthy card."""
    facts = {
        "uuid": f"GPU-{index:08x}-aaaa-bbbb-cccc-dddddddddddd",
        "name": name,
        "bus": bus(index),
        "memory": memory,
        "cc": cc,
        "persistence": 1,
        "power": 71_000,
        "power_limit": 700_000,
        "temperature": 31,
        "utilisation": 0,
        "ecc_volatile": 0,
        "ecc_aggregate": 0,
        "rows": "0 0 0 0",
        "throttle": 1,
        "field.230": 0,
        "mig_mode": "0 0",
    }
    return {f"{index}.{key}": value for key, value in facts.items()}


def machine(*cards: Mapping[str, object], driver: str = "580.65.06", cuda: int = 13_000) -> dict[str, object]:
    facts: dict[str, object] = {"driver": driver, "cuda": cuda, "count": len(cards)}
    for each in cards:
        facts |= each
    return facts


def switch_links(index: int, count: int = 18, down: int = 0) -> dict[str, object]:
    return {f"{index}.link.{n}": f"{int(n >= down)} 2 00000000:05:00.0" for n in range(count)}


def peer_links(index: int, peer: int, count: int = 4, down: int = 0) -> dict[str, object]:
    return {f"{index}.link.{n}": f"{int(n >= down)} 0 {bus(peer)}" for n in range(count)}


def fabric(
    index: int, state: int = 3, status: int = 0, cluster: str = "0" * 32, clique: int = 0, rest: str = "0 1"
) -> dict:
    return {f"{index}.fabric": f"{state} {status} {cluster} {clique} {rest}"}


def dgx_h100() -> dict[str, object]:
    return machine(*(card(i) | switch_links(i) | fabric(i) for i in range(8)))


def bridged_pairs() -> dict[str, object]:
    cards = [card(i, "NVIDIA H100 NVL", "95830 4 614") | peer_links(i, i ^ 1, 12) for i in range(4)]
    return machine(*cards)


def pcie_only() -> dict[str, object]:
    cards = [card(i, "NVIDIA L40S", "46068 1 500", "8.9") for i in range(4)]
    return machine(*cards)


def with_mig() -> dict[str, object]:
    first = card(0) | {"0.mig_mode": "1 1", "0.rows": "!3", "0.field.230": "!3"}
    for place, gi in ((0, 7), (2, 9)):
        unit = f"0.mig.{place}."
        first |= {
            f"{unit}uuid": f"MIG-{place:08x}-1111-2222-3333-444444444444",
            f"{unit}name": f"{H100} MIG 1g.10gb",
            f"{unit}memory": "9984 12 0",
            f"{unit}gi": gi,
            f"{unit}ci": 0,
            f"{unit}sms": 16,
        }
    return machine(
        first | {"0.mig.2.proc.0": "C 4242 1005", "process.4242": "/usr/bin/python serve.py --key=x"}, card(1)
    )


def gb200_rack() -> dict[str, object]:
    cards = [
        card(i, "NVIDIA GB200", "189471 4 700", "10.0") | switch_links(i) | fabric(i, 3, 0, CLUSTER, 32766)
        for i in range(4)
    ]
    return machine(*cards)
