"""One node of the simulation: its cards, its boot, and what is wrong with it."""

from pathlib import Path
from typing import Any

from agent_client.hardware import Inventory
from tests.simulate.loop import Blocked, Process

GPU_CLASS = "h100-sxm-80gb"


class Machine:
    """One node: its cards, its boot, and what is wrong with it."""

    def __init__(self, name: str, cards: int, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.node_id, self.machine_id = name, f"machine-{name}"
        self.uuids = [f"GPU-{name}-{index}" for index in range(cards)]
        self.sick: set[str] = set()
        self.boots = 0
        self.agent: Process | None = None
        self.disk_full = False
        self.query_hangs = False  # the driver answers no question

    @property
    def boot_id(self) -> str:
        return f"boot-{self.name}-{self.boots}"

    def inventory(self) -> Inventory:
        if self.query_hangs:
            raise Blocked
        gpus = []
        for index, card in enumerate(self.uuids):
            lost = {"code": "lost", "severity": "unplaceable", "text": "fell off the bus", "hint": ""}
            gpus.append(
                {
                    "index": index,
                    "uuid": card,
                    "name": "NVIDIA H100 80GB HBM3",
                    "class": GPU_CLASS,
                    "bus": f"0000:{index:02x}:00.0",
                    "memory_total_mib": 81_559,
                    "memory_used_mib": 0,
                    "compute_capability": "9.0",
                    "numa": 0,
                    "domain": f"{self.name}-nvswitch",
                    "mig": None,
                    "placeable": card not in self.sick,
                    "shared_memory": False,
                    "processes": [],
                    "problems": [lost] if card in self.sick else [],
                }
            )
        return Inventory(
            data={"version": 1, "node_id": self.name, "source": "nvml", "gpus": gpus, "adapters": [_hca()]}
        )


def _hca() -> dict[str, Any]:
    port = {"port": 1, "state": "ACTIVE", "phys_state": "LinkUp", "rate_gbps": 400.0, "rate_name": "4X NDR"}
    port |= {"link_layer": "InfiniBand", "lid": 1, "sm_lid": 1, "gid_prefix": "fe80::", "gid_index": 0}
    port |= {"fabric": "ib", "problems": []}
    return {"hca": "mlx5_0", "numa": 0, "netdev": "ib0", "virtual": False, "bond": None, "ports": [port]}
