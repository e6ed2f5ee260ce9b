"""Discovery of 8 cards and 8 adapters, and the agent's weight at rest: `python -m benchmarks.hardware.run`.

NVML is a fake library (tests/support/fake_nvml): measured is our own cost, the child process, pynvml's calls, JSON and
sysfs. The reference is the nvidia-smi backend reading a captured report of 8 cards, in the same interleaved run;
for the weight, a bare Python process that has imported asyncio and websockets.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agent_client.hardware.discovery import Discovery, DiscoveryOptions
from tests.agent.hardware import sysfs
from tests.e2e.harness import ROOT, House, wait_for
from tests.support import fake_nvml

ROUNDS = 15
DATA = ROOT / "tests" / "agent" / "hardware" / "data"
CAPTURE = DATA / "sysfs_infiniband" / "h100_8xib_plus_bond.sysfs"
BARE = "import asyncio, websockets, time, sys; print('up', flush=True); time.sleep(60)"


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


def milliseconds(discovery: Discovery) -> float:
    began = time.perf_counter()
    data = discovery.look().to_json()
    took = (time.perf_counter() - began) * 1000
    assert len(data["gpus"]) == 8, data["error"]
    assert len(data["adapters"]) >= 8
    return took


def discovery_times(folder: Path) -> tuple[float, float]:
    library = fake_nvml.build(folder / "library")
    os.environ |= fake_nvml.environment(library, fake_nvml.write(folder / "facts", fake_nvml.dgx_h100()))
    ib_root = sysfs.unpack(CAPTURE.read_text(errors="surrogateescape"), folder / "infiniband")
    smi = folder / "nvidia-smi"
    report = DATA / "nvidia_smi" / "h100x8_580.xml"
    smi.write_text(f"#!/bin/sh\ncase \"$*\" in '-q -x') cat {report};; *) exit 2;; esac\n")
    smi.chmod(0o755)
    common = {"node_id": "n", "ib_root": ib_root, "kernel_log": folder / "none"}
    nvml = Discovery(DiscoveryOptions(**common))  # type: ignore[arg-type]
    other = Discovery(DiscoveryOptions(**common, nvidia_smi=str(smi)))  # type: ignore[arg-type]
    pairs = [(milliseconds(nvml), milliseconds(other)) for _ in range(ROUNDS)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def weights(folder: Path) -> tuple[float, float]:
    house = House(folder)
    try:
        house.up()
        agent = house.agent(**{name: os.environ[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML")})
        wait_for(lambda: house.node()["status"] == "ready", "the node")
        bare = subprocess.Popen([sys.executable, "-c", BARE], stdout=subprocess.PIPE)
        assert bare.stdout is not None
        bare.stdout.readline()
        time.sleep(3)
        found = resident_mib(agent.pid), resident_mib(bare.pid)
        bare.kill()
        bare.wait()
        bare.stdout.close()
        return found
    finally:
        house.close()


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="llmgw-bench-"))
    try:
        nvml, other = discovery_times(folder)
        print(f"discovery of 8 cards and 9 adapters, median of {ROUNDS}: NVML {nvml:.0f} ms, nvidia-smi {other:.0f} ms")
        print(f"NVML / nvidia-smi: {nvml / other:.2f}; NVML / the 300 ms that a look may take: {nvml / 300:.2f}")
        (folder / "house").mkdir()
        agent, bare = weights(folder / "house")
        print(f"agent at rest: {agent:.0f} MiB, bare asyncio and websockets: {bare:.0f} MiB, ratio {agent / bare:.2f}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
