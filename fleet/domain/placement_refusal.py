"""Why nothing fits: the first reason of each node, with numbers and holders. Asked only when nothing fits."""

from collections import Counter
from collections.abc import Callable

from fleet.domain.fit import take
from fleet.domain.placement_bare import fabrics_of, fits
from fleet.domain.placement_filters import against, engine, labels, neighbours, standing
from fleet.domain.placement_groups import networks
from fleet.domain.placement_index import slot_of
from fleet.domain.placement_scale import Scale
from fleet.domain.placement_search import Ask
from fleet.domain.reasons import NodeRefusal, Reason, Refusal, fold
from fleet.domain.states import ReplicaState
from fleet.domain.types import GpuView, NodeView

#: So many cards are told one by one.
TOLD_CARDS = 4


def refuse(ask: Ask) -> Refusal:
    """The whole answer but for what would help."""
    holder = _holders(ask)
    several = ask.shape.nodes > 1
    refusals = []
    fitting = 0
    for node in ask.index.nodes.values():
        found = _node(ask, node, holder)
        if found is None:
            fitting += 1
            found = _network(ask, node)
        refusals.append(found)
    fewer, share = ask.profile.counts_cards, ask.profile.memory_mib_per_gpu is None
    return fold(
        tuple(refusals),
        fitting=fitting if several else 0,
        needed=ask.shape.nodes,
        fewer=f"lower {fewer}" if fewer else "",
        memory="gpu_memory_utilization" if share else "memory_mib_per_gpu",
    )


def _node(ask: Ask, node: NodeView, holder: Callable[[GpuView], str]) -> NodeRefusal | None:
    """None: one rank would fit there.

    What lasts comes before what passes: uncordoning a node that can't run the engine would help nobody. A node that is
    still joining has not told what it is yet.
    """
    passing = standing(node)
    if passing is not None and passing.reason is Reason.JOINING:
        return passing
    return (
        labels(node, ask.profile)
        or engine(node, ask.profile)
        or (_classes(ask, node) if ask.shape.cards else None)
        or (_small(ask, node) if passing and ask.shape.cards else None)
        or passing
        or neighbours(node, ask.profile, ask.index.runs, ask.own)
        or (_cards(ask, node, holder) if ask.shape.cards else None)
    )


def _classes(ask: Ask, node: NodeView) -> NodeRefusal | None:
    if not node.gpus:
        return NodeRefusal(node=node.name, reason=Reason.NO_GPUS, text=f"{node.name} has no GPUs")
    present = sorted({gpu.gpu_class for gpu in node.gpus})
    wanted = [name for name in (ask.profile.gpu_class or present) if name in present]
    if not wanted:
        text = f"{node.name} has {', '.join(present)}, {' or '.join(ask.profile.gpu_class)} needed"
        return NodeRefusal(node=node.name, reason=Reason.NO_CLASS, text=text)
    return None


def _small(ask: Ask, node: NodeView) -> NodeRefusal | None:
    """It would not have the cards if all were free."""
    counts = Counter(gpu.gpu_class for gpu in node.gpus)
    most, gpu_class = max((counts[name], name) for name in ask.profile.gpu_class or counts)
    if most >= ask.shape.cards:
        return None
    text = f"{node.name} has {most} {gpu_class}, {ask.shape.cards} needed"
    return NodeRefusal(node=node.name, reason=Reason.TOO_FEW_FREE, text=text)


def _cards(ask: Ask, node: NodeView, holder: Callable[[GpuView], str]) -> NodeRefusal | None:
    present = sorted({gpu.gpu_class for gpu in node.gpus})
    wanted = [name for name in (ask.profile.gpu_class or present) if name in present]
    found = [_of_class(ask, node, name, holder) for name in wanted]
    missing = [each for each in found if each is not None]
    return missing[0] if len(missing) == len(found) else None


def _of_class(ask: Ask, node: NodeView, gpu_class: str, holder: Callable[[GpuView], str]) -> NodeRefusal | None:
    shape = ask.shape
    cards = [gpu for gpu in node.gpus if gpu.gpu_class == gpu_class]
    why = {gpu.pk: against(gpu, ask.need, ask.index.taken, holder) for gpu in cards}
    free = [gpu for gpu in cards if why[gpu.pk] is None]
    if len(free) < shape.cards:
        reasons = [(gpu, reason) for gpu in cards if (reason := why[gpu.pk]) is not None]
        told = "; ".join(f"GPU {gpu.index} {text}" for gpu, (_, text) in reasons[:TOLD_CARDS])
        if len(reasons) > TOLD_CARDS:
            told += f"; and {len(reasons) - TOLD_CARDS} more"
        kinds = {reason for _, (reason, _) in reasons}
        return _short(
            node,
            reason=kinds.pop() if len(kinds) == 1 else Reason.TOO_FEW_FREE,
            free=len(free),
            need=shape.cards,
            what=gpu_class,
            told=told,
            held_by=tuple(sorted({gpu.holder for gpu in cards if gpu.holder})),
        )
    slot = slot_of(node, gpu_class, free, ask.index.racks)
    if take(slot.kind.room, shape, ask.index.holes_of(gpu_class)) is not None:
        return None
    sick = [f"GPU {gpu.index}: {gpu.problem}" for gpu in free if gpu.problem]  # a fabric not ready splits cards off
    return _short(
        node,
        reason=Reason.DOMAIN,
        free=max((*slot.kind.room.domains, 1)),
        need=shape.group,
        what=f"{gpu_class} in one NVLink domain",
        told="; ".join(sick[:TOLD_CARDS]),
    )


def _short(
    node: NodeView, *, reason: Reason, free: int, need: int, what: str, told: str, held_by: tuple[str, ...] = ()
) -> NodeRefusal:
    text = f"{node.name} has {free} free {what}, {need} needed" + (f" ({told})" if told else "")
    return NodeRefusal(node=node.name, reason=reason, text=text, held_by=held_by, free=free, need=need, what=what)


def _network(ask: Ask, node: NodeView) -> NodeRefusal:
    """It has room for a rank, and too few others that share a network with it have."""
    names = sorted({port.fabric for port in node.ports if port.fabric and port.active})
    racks = sorted({gpu.domain for gpu in node.gpus if gpu.domain in ask.index.racks})
    if not names and not racks:
        return NodeRefusal(node=node.name, reason=Reason.NO_FABRIC, text=f"{node.name} {_no_fabric(node)}")
    need = ask.shape.nodes
    if ask.shape.block > 1 and not racks:
        size = ask.profile.tensor_parallel
        text = f"{node.name} is in no NVLink rack: tensor_parallel {size} over nodes needs one, or nvlink: off"
        return NodeRefusal(node=node.name, reason=Reason.DOMAIN, text=text)
    where, fit = _most(ask, node, names, racks)
    others = "1 node" if fit == 1 else f"{fit} nodes"
    text = f"{node.name} has room, but {others} on {where} {'has' if fit == 1 else 'have'}, {need} needed"
    return NodeRefusal(node=node.name, reason=Reason.FABRIC, text=text)


def _most(ask: Ask, node: NodeView, names: list[str], racks: list[str]) -> tuple[str, int]:
    """The network of a node on which most nodes have room, and how many these are."""
    best = (-1, "")
    if ask.shape.cards == 0:
        bare = [other for other in ask.index.nodes.values() if fits(ask, other)]
        best = max(((sum(name in fabrics_of(other) for other in bare), name) for name in names), default=best)
    for gpu_class in ask.classes:
        if gpu_class in ask.index.slots.get(node.pk, {}):
            fabrics, of_racks = networks(Scale(ask.index, gpu_class, ask.shape))
            found = [] if ask.shape.block == ask.shape.nodes else [(fabrics.get(name, 0), name) for name in names]
            found += [(of_racks.get(name, 0), f"NVLink rack {name}") for name in racks]
            best = max(best, max(found, default=best))
    return (best[1] or ", ".join(names or racks)), max(best[0], 0)


def _no_fabric(node: NodeView) -> str:
    if not node.ports:
        return "has no adapter: it can host no part of a multi-node replica"
    named = [port for port in node.ports if port.fabric]
    if named:
        told = "; ".join(f"{p.hca}/{p.port} on {p.fabric}: {p.problem or 'not active'}" for p in named[:TOLD_CARDS])
        return f"has no active port on a fabric ({told})"
    if any(port.active for port in node.ports):
        return "has active ports, but none has a fabric's name: label it in agent.yaml"
    return "has no active port"


def _holders(ask: Ask) -> Callable[[GpuView], str]:
    """Who holds a card, with the state when that is not simply serving."""
    states = {replica.label: replica.state for replica in ask.index.snapshot.replicas}

    def told(gpu: GpuView) -> str:
        state = states.get(gpu.holder)
        return gpu.holder if state is None or state is ReplicaState.READY else f"{state} replica {gpu.holder}"

    return told
