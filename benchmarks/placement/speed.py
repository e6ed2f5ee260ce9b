"""How long one decision takes among 2,000 nodes of 8 cards, with every rule on. Processor time: machines are shared."""

import random
import time
from collections.abc import Mapping
from dataclasses import replace

from agent_client.profile import Profile, parse_profile
from fleet.domain.placement import FleetIndex, Placement, place
from fleet.domain.states import NodeStatus
from fleet.domain.types import FleetSnapshot, GpuView, ModelView, NodeView, PortView

NODES = 2000
DECISIONS = 500
CLASSES = ("h100-sxm-80gb", "h200-sxm-141gb", "a100-sxm-80gb")
_RULES = {
    "engine": "vllm",
    "model": "m",
    "gpu_class": [*CLASSES],
    "min_compute_capability": "8.0",
    "gpu_memory_utilization": 0.9,
    "node_selector": {"site": "a"},
    "anti_affinity": ["trainer"],
}


def _node(rng: random.Random, number: int) -> NodeView:
    gpu_class = rng.choice(CLASSES)
    held = set(rng.sample(range(8), rng.choice((0, 0, 0, 1, 2, 4, 6, 8))))
    width = rng.choice((8, 8, 8, 4))
    return NodeView(
        pk=number,
        name=f"gpu-{number:04}",
        status=rng.choices([NodeStatus.READY, NodeStatus.LOST], [97, 3])[0],
        schedulable=rng.random() < 0.97,
        labels={"site": rng.choice("aab"), "rack": f"r{number // 16}"},
        engines=("vllm", "sglang"),
        mgmt_addr=f"10.{number // 250}.0.{number % 250}",
        ports=tuple(
            PortView(hca=f"mlx5_{n}", port=1, fabric=f"ib-{number // 250}", active=rng.random() < 0.95, netdev=f"ib{n}")
            for n in range(4)
        ),
        holds_models=frozenset({1}) if rng.random() < 0.1 else frozenset(),
        gpus=tuple(
            GpuView(
                pk=number * 8 + index,
                uuid=f"GPU-{number}-{index}",
                index=index,
                gpu_class=gpu_class,
                memory_total_mib=81_559,
                memory_used_mib=rng.choices([600, 30_000], [98, 2])[0],
                compute_capability="9.0",
                domain=f"{number}/{index // width}",
                holder="old/1" if index in held else "",
                foreign="python (pid 7)" if rng.random() < 0.01 else "",
            )
            for index in range(8)
        ),
    )


def _profiles() -> Mapping[str, Profile]:
    return {
        "1 card": parse_profile(_RULES),
        "2 cards, spread": parse_profile({**_RULES, "tensor_parallel": 2, "arrangement": "spread"}),
        "4 cards": parse_profile({**_RULES, "tensor_parallel": 4}),
        "8 cards in pairs": parse_profile({**_RULES, "tensor_parallel": 2, "pipeline_parallel": 4}),
        "2 nodes of 8": parse_profile({**_RULES, "tensor_parallel": 8, "pipeline_parallel": 2, "nodes": 2}),
    }


def decisions() -> dict[str, list[float]]:
    """Seconds of each decision by profile; what is placed is taken before the next."""
    rng = random.Random(1)
    profiles = _profiles()
    models = tuple(
        ModelView(pk=pk, name=name, replicas=100, revision=1, profile=profile)
        for pk, (name, profile) in enumerate(profiles.items(), start=1)
    )
    snapshot = FleetSnapshot(nodes=tuple(_node(rng, number) for number in range(NODES)), models=models)
    began = time.process_time()
    index = FleetIndex.build(snapshot)
    took: dict[str, list[float]] = {"index": [time.process_time() - began], "taking": [], "all decisions": []}
    for number in range(DECISIONS):
        pk, (name, profile) = list(enumerate(profiles.items(), start=1))[number % len(profiles)]
        began = time.process_time()
        found = place(index, profile, model=pk)
        took.setdefault(name, []).append(time.process_time() - began)
        took["all decisions"].append(took[name][-1])
        if isinstance(found, Placement):
            began = time.process_time()
            index = index.taking(found, model=pk)
            took["taking"].append(time.process_time() - began)
    nobody = replace(profiles["4 cards"], node_selector={"site": "nowhere"})
    began = time.process_time()
    place(index, nobody)
    took["a refusal"] = [time.process_time() - began]
    return took
