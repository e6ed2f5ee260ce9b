"""Whom a replica of higher priority may displace: the least important first, one if one is enough."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from fleet.domain.placement_find import find_for
from fleet.domain.placement_index import FleetIndex
from fleet.domain.placement_search import Ask
from fleet.domain.placement_types import Placement
from fleet.domain.types import GpuView, NodeView


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A replica and the cards that it holds."""

    replica: int
    label: str
    priority: int
    created_at: datetime
    cards: tuple[tuple[int, GpuView], ...]  # with the node of each

    @property
    def nodes(self) -> frozenset[int]:
        return frozenset(node for node, _ in self.cards)

    @property
    def order(self) -> tuple[int, int, float, str]:
        """The least important, then the smallest, then the youngest."""
        return (self.priority, len(self.cards), -self.created_at.timestamp(), self.label)


def tenants(index: FleetIndex) -> tuple[Tenant, ...]:
    """All that hold cards, those that are missed the least first."""
    held: dict[str, list[tuple[int, GpuView]]] = {}
    for node in index.nodes.values():
        for gpu in node.gpus:
            if gpu.holder:
                held.setdefault(gpu.holder, []).append((node.pk, gpu))
    priorities = {model.pk: model.profile.priority for model in index.snapshot.models if model.profile is not None}
    found = [
        Tenant(
            replica=replica.pk,
            label=replica.label,
            priority=priorities.get(replica.model, 0),
            created_at=replica.created_at,
            cards=tuple(held[replica.label]),
        )
        for replica in index.snapshot.replicas
        if replica.label in held
    ]
    return tuple(sorted(found, key=lambda each: each.order))


def vacated(node: NodeView, labels: Collection[str]) -> NodeView:
    """As the node will be when these replicas have ended there."""
    gpus = tuple(
        replace(gpu, holder="", memory_used_mib=gpu.foreign_mib) if gpu.holder in labels else gpu for gpu in node.gpus
    )
    return replace(node, gpus=gpus)


def without_tenants(index: FleetIndex, gone: Collection[Tenant]) -> FleetIndex:
    labels = {tenant.label for tenant in gone}
    nodes = frozenset().union(*(tenant.nodes for tenant in gone))
    return index.changing(vacated(index.nodes[pk], labels) for pk in sorted(nodes))


def preempt(ask: Ask) -> Placement | None:
    """Where it fits once others have ended; `preempts` names them."""
    lower = [tenant for tenant in tenants(ask.index) if tenant.priority < ask.profile.priority]
    for tenant in lower:
        if _could_help(ask, tenant):
            found = find_for(replace(ask, index=without_tenants(ask.index, [tenant])))
            if found is not None:
                return replace(found, preempts=(tenant.replica,))
    for priority in sorted({tenant.priority for tenant in lower}):
        gone = [tenant for tenant in lower if tenant.priority <= priority]
        found = find_for(replace(ask, index=without_tenants(ask.index, gone)))
        if found is not None:
            cards = set(found.gpus)
            victims = [t.replica for t in gone if any(gpu.pk in cards for _, gpu in t.cards)]
            return replace(found, preempts=tuple(sorted(victims)))
    return None


def _could_help(ask: Ask, tenant: Tenant) -> bool:
    """On one of its nodes there would be cards enough for a rank."""
    for node in tenant.nodes:
        view = ask.index.nodes[node]
        for gpu_class in {gpu.gpu_class for at, gpu in tenant.cards if at == node}:
            if ask.profile.gpu_class and gpu_class not in ask.profile.gpu_class:
                continue
            slot = ask.index.slots.get(node, {}).get(gpu_class)
            free = slot.kind.room.total if slot else 0
            gained = sum(at == node and gpu.gpu_class == gpu_class for at, gpu in tenant.cards)
            if view.standing and free + gained >= ask.shape.cards:
                return True
    return False
