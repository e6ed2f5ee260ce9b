"""Hardware from the driver's library to the API: the same facts, a card that falls sick in service, one that hangs."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agent.hardware import sysfs
from tests.e2e.harness import House, wait_for
from tests.support import fake_nvml

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.heavy,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not fake_nvml.available(), reason="gcc is needed to build the fake library"),
]
CAPTURE = Path(sysfs.__file__).parent / "data" / "sysfs_infiniband" / "h100_8xib_plus_bond.sysfs"


class Machine:
    """An agent on a DGX H100 made of a fake library and a captured sysfs."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.facts = fake_nvml.dgx_h100()
        self.file = house.folder / "facts"
        library = fake_nvml.build(house.folder / "library")
        ib_root = sysfs.unpack(CAPTURE.read_text(errors="surrogateescape"), house.folder / "infiniband")
        agent_file = house.folder / "agent.yaml"
        fabrics = [{"name": "ib-east", "hcas": ["mlx5_[0-3]"]}, {"name": "ib-west", "hcas": ["mlx5_[4-9]"]}]
        agent_file.write_text(yaml.safe_dump({"fabrics": fabrics, "ib_root": str(ib_root), "discovery_seconds": 1}))
        self.env = {
            "LLMGW_AGENT_CONFIG": str(agent_file),
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML": str(self.file),
        }

    def become(self, **changes: Any) -> None:
        """In one step, as a driver changes its mind."""
        fake_nvml.write(self.file.with_suffix(".new"), {**self.facts, **changes}).replace(self.file)

    def start(self) -> None:
        self.house.agent(**self.env)

    def cards(self) -> dict[int, dict[str, Any]]:
        return {gpu["index"]: gpu for gpu in self.house.node()["gpus"] if gpu["present"]}

    def placeable(self) -> list[int]:
        return sorted(index for index, gpu in self.cards().items() if gpu["placeable"])


def events(house: House, kind: str) -> list[str]:
    return [event["text"] for event in house.api("events/")["results"] if event["kind"] == kind]


def test_what_the_machine_has_is_what_the_fleet_sees(house: House) -> None:
    machine = Machine(house)
    machine.become()
    machine.start()
    wait_for(lambda: house.node()["status"] == "ready", "the node")
    node = house.node()
    assert {(gpu["gpu_class"], gpu["domain"]) for gpu in node["gpus"]} == {("h100-sxm-80gb", "nvswitch")}
    assert machine.placeable() == list(range(8))
    ports = {a["hca"]: {port["fabric"] for port in a["ports"]} for a in node["inventory"]["adapters"]}
    assert {hca for hca, fabrics in ports.items() if fabrics == {"ib-east"}} == {"mlx5_0", "mlx5_1"}
    assert {"ib-west"} in ports.values()
    labelled_and_missing = "fabric ib-east: adapters mlx5_2 and mlx5_3 are not there"
    assert any(labelled_and_missing in text for text in node["inventory"]["warnings"])

    machine.become(**{"3.memory": "!15"})  # falls off the bus in service
    wait_for(lambda: machine.placeable() == [0, 1, 2, 4, 5, 6, 7], "the lost card alone to be out")
    assert "GPU 3 (h100-sxm-80gb): the driver has lost the card" in events(house, "gpu_problem")[0]

    machine.become(**{"5.cc": "hang"})  # a call that never returns
    wait_for(lambda: 5 not in machine.placeable(), "the hanging card to be out", 40)
    wait_for(lambda: machine.placeable() == [0, 1, 2, 3, 4, 6, 7], "the first card to be back, the others to stay", 40)
    assert any("GPU 5 (h100-sxm-80gb): the driver hangs at this card" in text for text in events(house, "gpu_problem"))
    deadline = time.monotonic() + 4  # heartbeats go on: "unreachable" is 3 s away in this house
    while time.monotonic() < deadline:
        assert house.node()["status"] == "ready"
        time.sleep(0.2)

    house.kill("node-a")
    machine.become(count=4, **{f"{i}.fabric": "2 0 0 0" for i in range(8)})
    machine.start()
    wait_for(lambda: sorted(machine.cards()) == [0, 1, 2, 3], "the cards of the changed machine", 40)
    assert all("in progress" in str(gpu["problems"]).lower() for gpu in machine.cards().values())
    assert len({gpu["domain"] for gpu in machine.cards().values()}) == 4  # no fabric, no group
    assert len(events(house, "gpu_gone")) == 4
    profile = {"engine": "vllm", "model": "org/m", "gpu_class": "h100-sxm-80gb", "tensor_parallel": 4}
    house.api("models/", {"name": "big", "profile": profile})
    refused = wait_for(lambda: house.replica().get("explanation"), "the refusal")
    assert "node-a has 1 free h100-sxm-80gb in one NVLink domain, 4 needed" in refused["text"]
    assert "GPU 0: its NVLink fabric is In Progress" in refused["text"]
