"""Fleets drawn as text, one node a line: `name [words] : cards`.

Cards: `.` free, `x` held by other/1, `A` to `H` held by a/1 to h/1 (replicas of the snapshot), `f` used by a
foreign process, `c` cordoned, `!` broken, `m` memory used, `s` a MIG slice; `-` parts NVLink domains, `?`: unknown.
Words: a status; `cordoned`; `draining`; a class; `rack=r1` and `site=a` (labels); `engine=x`; `cc=8.0`;
`ib=east,west!` (ports by fabric, `!` down); `nvl=r7` (all its cards are in that rack's domain); `files` (of model 1).
"""

import datetime

from agent_client.profile import Profile, parse_profile
from agent_client.protocol.states import ShardState
from fleet.domain.states import NodeStatus, ReplicaState, ReplicaWish
from fleet.domain.types import FleetSnapshot, GpuView, ModelView, NodeView, PortView, ReplicaView, ShardView

BEGAN = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
TENANTS = "ABCDEFGH"


def profile(**fields: object) -> Profile:
    return parse_profile({"engine": "vllm", "model": "m", **fields})


def fleet(picture: str, *, priority: int = 0, state: ReplicaState = ReplicaState.READY) -> FleetSnapshot:
    """`priority` and `state` are those of the replicas that letters stand for."""
    lines = [line.strip() for line in picture.strip().splitlines()]
    nodes: list[NodeView] = []
    for line in lines:
        nodes.append(_node(line, len(nodes) + 1, sum(len(node.gpus) for node in nodes)))
    return FleetSnapshot(nodes=tuple(nodes), **_tenants(nodes, priority, state))


def _node(line: str, pk: int, before: int) -> NodeView:
    head, _, drawn = line.partition(":")
    name, *words = head.split()
    pairs = [word.split("=") for word in words if "=" in word]
    said = dict(pairs)
    status = next((s for s in NodeStatus if s.value in words), NodeStatus.READY)
    gpu_class = next((word for word in words if "gb" in word), "h100-sxm-80gb")
    gpus: list[GpuView] = []
    for domain, group in enumerate(drawn.replace("?", "").strip().split("-")):
        for sign in group.strip():
            known = f"{name}-{domain}" if "?" not in drawn and sign != "s" else ""
            pk_of = before + len(gpus) + 1
            gpus.append(_card(sign, pk_of, len(gpus), gpu_class, said.get("nvl", known), said.get("cc", "9.0")))
    fabrics = [word for word in said.get("ib", "").split(",") if word]
    return NodeView(
        pk=pk,
        name=name,
        status=status,
        schedulable="cordoned" not in words,
        draining="draining" in words,
        silent_seconds=310.0 if status in (NodeStatus.UNREACHABLE, NodeStatus.LOST) else 1.0,
        labels={key: value for key, value in pairs if key in ("rack", "site")},
        engines=tuple(value for key, value in pairs if key == "engine") or ("vllm",),
        gpus=tuple(gpus),
        ports=tuple(_port(number, word) for number, word in enumerate(fabrics)),
        mgmt_addr=f"10.0.0.{pk}",
        holds_models=frozenset({1}) if "files" in words else frozenset(),
    )


def _card(sign: str, pk: int, index: int, gpu_class: str, domain: str, capability: str) -> GpuView:
    holder = "other/1" if sign == "x" else f"{sign.lower()}/1" if sign in TENANTS else ""
    return GpuView(
        pk=pk,
        uuid=f"GPU-{pk}",
        index=index,
        gpu_class=gpu_class + ("-mig-1g.10gb" if sign == "s" else ""),
        memory_total_mib=10_240 if sign == "s" else 81_920 if "80gb" in gpu_class else 40_960,
        memory_used_mib=70_000 if sign == "m" else 0,
        compute_capability=capability,
        domain=domain,
        mig=sign == "s",
        holder=holder,
        holder_attempt=1 if holder else 0,
        foreign="python (pid 77)" if sign == "f" else "",
        foreign_mib=70_000 if sign == "f" else None,
        schedulable=sign != "c",
        usable=sign != "!",
        problem="fell off the bus" if sign == "!" else "",
    )


def _port(number: int, word: str) -> PortView:
    down = word.endswith("!")
    fabric = word.rstrip("!")
    problem = "the port is down" if down else ""
    return PortView(hca=f"mlx5_{number}", port=1, fabric=fabric, active=not down, problem=problem, netdev=f"ib{number}")


def _tenants(nodes: list[NodeView], priority: int, state: ReplicaState) -> dict[str, tuple[object, ...]]:
    models, replicas = [], []
    for number, letter in enumerate(TENANTS, start=2):
        where = [node for node in nodes if any(gpu.holder == f"{letter.lower()}/1" for gpu in node.gpus)]
        cards = sum(gpu.holder == f"{letter.lower()}/1" for node in where for gpu in node.gpus)
        if not cards:
            continue
        wish = profile(tensor_parallel=cards // len(where), nodes=1, priority=priority)
        models.append(ModelView(pk=number, name=letter.lower(), replicas=1, revision=1, profile=wish))
        shards = tuple(
            ShardView(pk=number * 100 + rank, rank=rank, epoch=1, node=node.pk, state=ShardState.READY, wanted=True)
            for rank, node in enumerate(where)
        )
        replicas.append(
            ReplicaView(
                pk=number,
                label=f"{letter.lower()}/1",
                model=number,
                number=1,
                wish=ReplicaWish.RUN,
                state=state,
                attempt=1,
                revision=1,
                created_at=BEGAN,
                shards=shards,
            )
        )
    return {"models": tuple(models), "replicas": tuple(replicas)}
