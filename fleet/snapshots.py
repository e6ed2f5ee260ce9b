"""Rows → FleetSnapshot, in a fixed number of queries whatever the size of the fleet."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet.domain.room import SnapshotRoom
from fleet.domain.states import NodeStatus
from fleet.domain.types import FleetSnapshot, GpuView, NodeView, PortView
from fleet.models import Adapter, Gpu, GpuClaim, Node, Shard
from fleet.wishes import load_wishes

#: Placement prefers nodes that have been back for longer (flap damping, DESIGN.md section 3).
SETTLED_AFTER = timedelta(seconds=60)


_NODE_FIELDS = (
    *("pk", "name", "status", "status_at", "schedulable", "cordon_reason", "drain_deadline_at", "last_seen_at"),
    *("labels", "engines", "mgmt_addr", "now", "domains"),
)
_GPU_FIELDS = (
    *("pk", "node_id", "uuid", "index", "gpu_class", "memory_total_mib", "memory_used_mib", "compute_capability"),
    *("domain", "mig", "placeable", "present", "problems", "processes", "schedulable", "cordon_reason"),
)


def load(*, node: int | None = None) -> FleetSnapshot:
    """The whole fleet, in a fixed number of queries. `node`: of the machines that one alone, with what runs there."""
    wishes = load_wishes()
    if node is not None:
        here = tuple(each for each in wishes.replicas if any(shard.node == node for shard in each.shards))
        wishes = replace(wishes, replicas=here)
    return load_room(wishes, node=node).snapshot


def load_room(wishes: FleetSnapshot, *, free_cards_only: bool = False, node: int | None = None) -> SnapshotRoom:
    """The machines beside what is wished: five queries more.

    `free_cards_only`: nodes that may take something and their unclaimed cards; the others are most of a busy fleet.
    """
    per_node: dict[int, int] = defaultdict(int)
    for replica in wishes.replicas:
        for shard in replica.shards:
            per_node[shard.node] += shard.state not in ENDED_SHARD_STATES
    if free_cards_only:
        standing = Node.objects.filter(status=NodeStatus.READY, schedulable=True, drain_deadline_at__isnull=True)
        unclaimed = ~Exists(GpuClaim.objects.filter(gpu=OuterRef("pk"), released_at__isnull=True))
        unheld = Gpu.objects.filter(unclaimed, node__in=standing)
        nodes = standing.filter(Exists(unheld.filter(node=OuterRef("pk"))))
        return SnapshotRoom(replace(wishes, nodes=_nodes(per_node, {}, unheld, nodes)))
    held: dict[int, list[int]] = defaultdict(list)
    holders: dict[int, tuple[str, int]] = {}
    labels = {replica.pk: replica.label for replica in wishes.replicas}
    claims = GpuClaim.objects.filter(released_at__isnull=True).order_by("pk")
    for gpu, holder, epoch, owner in claims.values_list("gpu_id", "shard_id", "shard__epoch", "shard__replica_id"):
        held[holder].append(gpu)
        holders[gpu] = (labels.get(owner, "a new replica"), epoch)
    cards = {shard: tuple(gpus) for shard, gpus in held.items()}
    gpus, nodes = Gpu.objects.all(), Node.objects.all()
    if node is not None:
        gpus, nodes = gpus.filter(node=node), nodes.filter(pk=node)
    return SnapshotRoom(replace(wishes, nodes=_nodes(per_node, holders, gpus, nodes)), cards)


def _nodes(
    per_node: Mapping[int, int],
    holders: Mapping[int, tuple[str, int]],
    cards: QuerySet[Gpu],
    nodes: QuerySet[Node],
) -> tuple[NodeView, ...]:
    # An inventory is large; of it only the domains are read, which alone tell a rack's from a node's own.
    rows = list(
        nodes.annotate(now=Now(), domains=F("inventory__domains"))
        .order_by("name")
        .values_list(*_NODE_FIELDS, named=True)
    )
    racks = {node.pk: _racks(node.domains) for node in rows}
    gpus: dict[int, list[GpuView]] = defaultdict(list)
    for gpu in cards.order_by().values_list(*_GPU_FIELDS, named=True):
        holder, attempt = holders.get(gpu.pk, ("", 0))
        gpus[gpu.node_id].append(_gpu(gpu, holder, attempt, racks.get(gpu.node_id, frozenset())))
    ports: dict[int, list[PortView]] = defaultdict(list)
    for adapter in (
        Adapter.objects.filter(node__in=nodes.values("pk"), present=True)
        .select_related("fabric")
        .order_by("hca", "port")
    ):
        ports[adapter.node_id].append(_port(adapter))
    files = _files()
    return tuple(
        NodeView(
            pk=node.pk,
            name=node.name,
            status=NodeStatus(node.status),
            schedulable=node.schedulable,
            cordon_reason=node.cordon_reason,
            draining=node.drain_deadline_at is not None,
            unstable=node.status == NodeStatus.READY and (node.now - node.status_at) < SETTLED_AFTER,
            silent_seconds=_silent(node),
            labels=node.labels,
            engines=tuple(node.engines),
            gpus=tuple(sorted(gpus[node.pk], key=lambda gpu: (gpu.index, gpu.pk))),
            ports=tuple(ports[node.pk]),
            mgmt_addr=node.mgmt_addr,
            holds_models=frozenset(files[node.pk]),
            shards=per_node.get(node.pk, 0),
        )
        for node in rows
    )


def _files() -> dict[int, set[int]]:
    """Node → models that were ready there once: their files are there, as far as is known."""
    found: dict[int, set[int]] = defaultdict(set)
    served = Shard.objects.filter(Q(state=ShardState.READY) | ~Q(endpoint=""))
    for node, model in served.order_by().values_list("node_id", "replica__model_id").distinct():
        found[node].add(model)
    return found


def _racks(domains: Any) -> frozenset[str]:
    """Ids of NVLink domains that span nodes; the id of any other means something on its node alone."""
    listed = domains if isinstance(domains, list) else []
    return frozenset(str(each.get("id")) for each in listed if isinstance(each, dict) and each.get("kind") == "rack")


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


def _gpu(gpu: Any, holder: str, attempt: int, racks: frozenset[str]) -> GpuView:
    problem = next((str(p.get("text", "")) for p in gpu.problems if isinstance(p, dict)), "")
    processes = [each for each in gpu.processes if isinstance(each, dict)]
    foreign = [each for each in processes if each.get("foreign", True)]
    sizes = [each["memory_mib"] for each in foreign if isinstance(each.get("memory_mib"), int)]
    first = "" if holder or not foreign else f"{foreign[0].get('name') or 'a process'} (pid {foreign[0].get('pid')})"
    return GpuView(
        pk=gpu.pk,
        uuid=gpu.uuid,
        index=gpu.index if gpu.index is not None else -1,
        gpu_class=gpu.gpu_class,
        memory_total_mib=gpu.memory_total_mib,
        memory_used_mib=_used_by_others(gpu.memory_used_mib, processes),
        compute_capability=gpu.compute_capability,
        domain=gpu.domain if not gpu.domain or gpu.domain in racks else f"{gpu.node_id}/{gpu.domain}",
        usable=gpu.present and gpu.placeable,
        problem=problem if gpu.present else "is gone",
        mig=gpu.mig is not None,
        schedulable=gpu.schedulable,
        cordon_reason=gpu.cordon_reason,
        holder=holder,
        holder_attempt=attempt,
        foreign=first,
        foreign_mib=sum(sizes) if foreign and len(sizes) == len(foreign) else None,
    )


def _used_by_others(used: int | None, processes: list[dict[str, Any]]) -> int | None:
    """Without what engines of ours held at the last look: they have ended where the card is not claimed any more."""
    ours = [each.get("memory_mib") for each in processes if not each.get("foreign", True)]
    if used is None or any(not isinstance(size, int) for size in ours):
        return None
    return max(0, used - sum(size for size in ours if isinstance(size, int)))
