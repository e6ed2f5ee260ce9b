"""The fleet or the profile after a change that a person could make, and which changes there are."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from agent_client.profile import NvlinkRule, Profile
from fleet.domain.placement_preempt import tenants, vacated
from fleet.domain.placement_search import Ask
from fleet.domain.reasons import Change, ChangeKind
from fleet.domain.states import NodeStatus
from fleet.domain.types import GpuView, NodeView

_AWAY = (NodeStatus.UNREACHABLE, NodeStatus.LOST, NodeStatus.JOINING)


def applied(ask: Ask, change: Change) -> Ask:
    """The same question to the changed fleet."""
    kind = change.kind
    if kind is ChangeKind.SET_PROFILE:
        return replace(ask, profile=with_fields(ask.profile, dict(change.values)))
    if kind in (ChangeKind.DRAIN_REPLICA, ChangeKind.STOP_REPLICA):
        held = [node for node in ask.index.nodes.values() if any(gpu.holder == change.target for gpu in node.gpus)]
        return replace(ask, index=ask.index.changing(vacated(node, (change.target,)) for node in held))
    node = next(each for each in ask.index.nodes.values() if each.name == change.target)
    return replace(ask, index=ask.index.changing([_changed(node, change)]))


def with_fields(profile: Profile, values: dict[str, Any]) -> Profile:
    if "nvlink" in values:
        values["nvlink"] = NvlinkRule(values["nvlink"])
    if "gpu_class" in values:
        values["gpu_class"] = tuple(values["gpu_class"])
    return replace(profile, **values)


def _changed(node: NodeView, change: Change) -> NodeView:
    match change.kind:
        case ChangeKind.UNCORDON_NODE:
            return replace(node, schedulable=True, draining=False)
        case ChangeKind.CANCEL_DRAIN:
            return replace(node, draining=False)
        case ChangeKind.RETURN_NODE:
            return replace(node, status=NodeStatus.READY)
        case ChangeKind.RAISE_PORT:
            return replace(
                node, ports=tuple(replace(port, active=True) if port.fabric else port for port in node.ports)
            )
        case ChangeKind.UNCORDON_GPUS:
            return _with_cards(node, change, schedulable=True)
        case _:
            return _with_cards(node, change, foreign="", foreign_mib=None, memory_used_mib=0)


def _with_cards(node: NodeView, change: Change, **fields: Any) -> NodeView:
    gpus = (replace(gpu, **fields) if gpu.index in change.gpus else gpu for gpu in node.gpus)
    return replace(node, gpus=tuple(gpus))


def of_node(node: NodeView) -> Iterator[Change]:
    """What can be done to a node and its cards, the simplest first."""
    name = node.name
    if not node.schedulable:
        text = f"uncordon {name}" + (", which ends its drain" if node.draining else "")
        yield Change(kind=ChangeKind.UNCORDON_NODE, target=name, text=text)
    elif node.draining:
        yield Change(kind=ChangeKind.CANCEL_DRAIN, target=name, text=f"cancel the drain of {name}")
    cordoned = [gpu for gpu in node.gpus if gpu.usable and not gpu.schedulable and not gpu.holder]
    if cordoned:
        yield of_cards(ChangeKind.UNCORDON_GPUS, node, cordoned)
    foreign = [gpu for gpu in node.gpus if gpu.usable and gpu.foreign and not gpu.holder]
    if foreign:
        yield of_cards(ChangeKind.END_PROCESSES, node, foreign)
    down = [port for port in node.ports if port.fabric and not port.active]
    if down and not any(port.active and port.fabric for port in node.ports):
        named = ", ".join(f"{port.hca}/{port.port} ({port.fabric})" for port in down[:4])
        yield Change(kind=ChangeKind.RAISE_PORT, target=name, text=f"bring up {named} on {name}")
    if node.status in _AWAY:
        text = f"bring {name} back: it is {node.status}"
        yield Change(kind=ChangeKind.RETURN_NODE, target=name, text=text)


def of_cards(kind: ChangeKind, node: NodeView, gpus: list[GpuView]) -> Change:
    numbers = ", ".join(str(gpu.index) for gpu in gpus)
    if kind is ChangeKind.UNCORDON_GPUS:
        text = f"uncordon {node.name} GPU {numbers}"
    else:
        who = ", ".join(dict.fromkeys(_process(gpu) for gpu in gpus))
        text = f"end {who} on {node.name} GPU {numbers}"
    return Change(kind=kind, target=node.name, text=text, gpus=tuple(gpu.index for gpu in gpus))


def _process(gpu: GpuView) -> str:
    return gpu.foreign + (f" that holds {gpu.foreign_mib} MiB" if gpu.foreign_mib else "")


def of_replicas(ask: Ask) -> Iterator[tuple[frozenset[int], Change]]:
    """Ending each that holds cards, with the nodes where that frees some: the least important first."""
    for tenant in tenants(ask.index):
        freed = "; ".join(
            f"{ask.index.nodes[pk].name} GPU {', '.join(str(gpu.index) for at, gpu in tenant.cards if at == pk)}"
            for pk in sorted(tenant.nodes)
        )
        text = f"stop {tenant.label} (frees {freed})"
        yield tenant.nodes, Change(kind=ChangeKind.STOP_REPLICA, target=tenant.label, text=text)
