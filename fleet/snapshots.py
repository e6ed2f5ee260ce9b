"""Rows → FleetSnapshot, in a fixed number of queries whatever the size of the fleet."""

from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet.domain.room import SnapshotRoom
from fleet.domain.states import NodeStatus
from fleet.domain.types import FleetSnapshot, GpuView, NodeView, PortView
from fleet.models import Adapter, Gpu, GpuClaim, Node
from fleet.wishes import load_wishes

#: A node that fell silent is preferred again only after this long.
STABLE_AFTER = timedelta(seconds=60)


def load() -> FleetSnapshot:
    """The whole fleet, in fourteen queries."""
    return load_room(load_wishes()).snapshot


def load_room(wishes: FleetSnapshot) -> SnapshotRoom:
    """The machines beside what is wished: four queries more."""
    per_node: dict[int, int] = defaultdict(int)
    for replica in wishes.replicas:
        for shard in replica.shards:
            per_node[shard.node] += shard.state not in ENDED_SHARD_STATES
    held: dict[int, list[int]] = defaultdict(list)
    holders: dict[int, str] = {}
    rows = GpuClaim.objects.filter(released_at__isnull=True).order_by("pk")
    for gpu, holder, model, number in rows.values_list(
        "gpu_id", "shard_id", "shard__replica__model__name", "shard__replica__number"
    ):
        held[holder].append(gpu)
        holders[gpu] = f"{model}/{number}"
    claims = {shard: tuple(gpus) for shard, gpus in held.items()}
    return SnapshotRoom(snapshot=replace(wishes, nodes=_nodes(per_node, holders)), claims=claims)


def _nodes(per_node: dict[int, int], holders: dict[int, str]) -> tuple[NodeView, ...]:
    gpus: dict[int, list[GpuView]] = defaultdict(list)
    for gpu in Gpu.objects.all():
        gpus[gpu.node_id].append(_gpu(gpu, holders.get(gpu.pk, "")))
    ports: dict[int, list[PortView]] = defaultdict(list)
    for adapter in Adapter.objects.filter(present=True).select_related("fabric").order_by("hca", "port"):
        ports[adapter.node_id].append(_port(adapter))
    rows = Node.objects.defer("inventory").annotate(now=Now()).order_by("name")
    return tuple(
        NodeView(
            pk=node.pk,
            name=node.name,
            status=NodeStatus(node.status),
            schedulable=node.schedulable,
            cordon_reason=node.cordon_reason,
            draining=node.drain_deadline_at is not None,
            unstable=_unstable(node),
            silent_seconds=_silent(node),
            labels=node.labels,
            engines=tuple(node.engines),
            gpus=tuple(sorted(gpus[node.pk], key=lambda gpu: (gpu.index, gpu.pk))),
            ports=tuple(ports[node.pk]),
            mgmt_addr=node.mgmt_addr,
            shards=per_node.get(node.pk, 0),
        )
        for node in rows
    )


def _port(adapter: Adapter) -> PortView:
    return PortView(
        hca=adapter.hca,
        port=adapter.port,
        fabric=adapter.fabric.name if adapter.fabric else "",
        active=adapter.state in ("ACTIVE", "ACTIVE_DEFER"),
        problem=next((str(p.get("text", "")) for p in adapter.problems if isinstance(p, dict)), ""),
        netdev=adapter.netdev,
        ethernet=adapter.link_layer == "Ethernet",
        gid_index=adapter.gid_index,
    )


def _silent(node: Any) -> float | None:
    return None if node.last_seen_at is None else max(0.0, (node.now - node.last_seen_at).total_seconds())


def _unstable(node: Any) -> bool:
    """It fell silent, and is back for so short a time that it may do so again."""
    back_at = max(node.status_at, node.flapped_at) if node.flapped_at else None
    return back_at is not None and node.now - back_at < STABLE_AFTER


def _gpu(gpu: Gpu, holder: str) -> GpuView:
    problem = next((str(p.get("text", "")) for p in gpu.problems if isinstance(p, dict)), "")
    foreign = ""
    process = next((p for p in gpu.processes if isinstance(p, dict) and p.get("foreign", True)), None)
    if not holder and process is not None:
        foreign = f"{process.get('name') or 'a process'} (pid {process.get('pid')})"
    return GpuView(
        pk=gpu.pk,
        uuid=gpu.uuid,
        index=gpu.index if gpu.index is not None else -1,
        gpu_class=gpu.gpu_class,
        memory_total_mib=gpu.memory_total_mib,
        memory_used_mib=gpu.memory_used_mib,
        compute_capability=gpu.compute_capability,
        domain=gpu.domain,
        usable=gpu.present and gpu.placeable,
        problem=problem if gpu.present else "is gone",
        schedulable=gpu.schedulable,
        holder=holder,
        foreign=foreign,
    )
