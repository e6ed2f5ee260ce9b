"""Seeded random fleets and what arrives there, of eight kinds. The catalog is known; who comes when is not."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agent_client.profile import Profile, parse_profile
from fleet.domain.states import NodeStatus
from fleet.domain.types import FleetSnapshot, GpuView, ModelView, NodeView, PortView

KINDS = ("homogeneous", "mixed", "split", "occupied", "fabrics", "small and big", "adversarial", "preferences")
CLASSES = ("h100-sxm-80gb", "a100-sxm-80gb", "l40s-48gb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    seed: int
    kind: str
    snapshot: FleetSnapshot
    arrivals: tuple[int, ...]  # models by primary key, in order

    @property
    def profiles(self) -> dict[int, Profile]:
        return {model.pk: model.profile for model in self.snapshot.models if model.profile is not None}


def cases(count: int) -> Iterator[Case]:
    for seed in range(count):
        yield case(seed)


def case(seed: int) -> Case:
    rng = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    nodes = tuple(_node(rng, kind, number) for number in range(rng.randint(3, 10)))
    capacity = sum(gpu.free for node in nodes for gpu in node.gpus)
    profiles = _profiles(rng, kind)
    arrivals = _arrivals(rng, kind, profiles, capacity * rng.uniform(0.85, 1.25))
    models = tuple(
        ModelView(pk=pk, name=f"m{pk}", replicas=arrivals.count(pk), revision=1, profile=profile)
        for pk, profile in profiles.items()
    )
    return Case(seed=seed, kind=kind, snapshot=FleetSnapshot(nodes=nodes, models=models), arrivals=tuple(arrivals))


def _node(rng: random.Random, kind: str, number: int) -> NodeView:
    several = kind in ("mixed", "preferences", "small and big")
    gpu_class = rng.choice(CLASSES[: rng.randint(2, 3)]) if several else CLASSES[0]
    width = rng.choice((2, 4, 4, 8)) if kind == "split" else 8
    if gpu_class == "l40s-48gb":
        width = rng.choice((1, 2))
    held = rng.choice((0, 1, 1, 2, 3, 4, 5, 6)) if kind in ("occupied", "adversarial") else 0
    taken = set(rng.sample(range(8), held))
    gpus = tuple(
        GpuView(
            pk=number * 8 + index,
            uuid=f"GPU-{number}-{index}",
            index=index,
            gpu_class=gpu_class,
            memory_total_mib=81_559,
            domain=f"{number}/{index // width}",
            holder="old/1" if index in taken else "",
        )
        for index in range(8)
    )
    return NodeView(
        pk=number,
        name=f"n{number:02}",
        status=NodeStatus.READY,
        engines=("vllm",),
        gpus=gpus,
        ports=_ports(rng, kind),
        mgmt_addr=f"10.0.0.{number}",
    )


def _ports(rng: random.Random, kind: str) -> tuple[PortView, ...]:
    if kind not in ("fabrics", "small and big", "mixed"):
        return ()
    fabric = rng.choice(("east", "west", "")) if kind == "fabrics" else "east"
    return (PortView(hca="mlx5_0", port=1, fabric=fabric, active=rng.random() < 0.8),) if fabric else ()


def _profiles(rng: random.Random, kind: str) -> dict[int, Profile]:
    sizes = {"small and big": (1, 1, 2, 8, 8)}.get(kind, (1, 2, 2, 4, 4, 8))
    found = []
    for _ in range(rng.randint(3, 6)):
        found.append(_profile(rng, kind, rng.choice(sizes)))
    if kind in ("fabrics", "small and big") or (kind == "mixed" and rng.random() < 0.5):
        found.append(replace(_profile(rng, kind, 8), nodes=2, tensor_parallel=8, pipeline_parallel=2))
    return dict(enumerate(found, start=1))


def _profile(rng: random.Random, kind: str, size: int) -> Profile:
    data: dict[str, object] = {"engine": "vllm", "model": "m", "tensor_parallel": size}
    if kind == "preferences":
        data["gpu_class"] = rng.sample(CLASSES, rng.randint(1, 3))
    elif kind in ("mixed", "small and big"):
        data["gpu_class"] = [rng.choice(CLASSES[:2])]
    if size > 1 and rng.random() < 0.1:
        data["nvlink"] = "off"
    if size == 2 and rng.random() < 0.2:
        data["pipeline_parallel"] = rng.choice((2, 3))  # pairs that may lie apart on their node
    return parse_profile(data)


def _arrivals(rng: random.Random, kind: str, profiles: dict[int, Profile], cards: float) -> list[int]:
    weights = {pk: rng.uniform(0.3, 1.0) for pk in profiles}
    arrivals: list[int] = []
    while cards > 0:
        (pk,) = rng.choices(list(weights), list(weights.values()))
        arrivals.append(pk)
        cards -= profiles[pk].gpus_total
    if kind == "adversarial":  # the small first: each could spoil a place of the large
        arrivals.sort(key=lambda pk: (profiles[pk].gpus_total, rng.random()))
    elif kind == "small and big":  # half of the small first, then as they come
        small = [pk for pk in arrivals if profiles[pk].gpus_total == 1]
        early = small[: len(small) // 2]
        for pk in early:
            arrivals.remove(pk)
        arrivals = early + arrivals
    return arrivals
