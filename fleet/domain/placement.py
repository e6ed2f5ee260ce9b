"""`place(snapshot, profile) → Placement | Refusal`: pure and deterministic, whatever the order of rows.

Filters first, each giving the first thing that stands against a node; then the fit that breaks the fewest holes wins:
the smallest domain (or node) in which the group fits.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from agent_client.profile import NvlinkRule, Profile
from fleet.domain.reasons import NodeRefusal, Reason, Refusal, fold
from fleet.domain.states import NodeStatus
from fleet.domain.types import FleetSnapshot, GpuView, NodeView


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlacement:
    """The part of a replica on one node."""

    rank: int
    node: int
    node_name: str
    gpus: tuple[int, ...] = ()  # primary keys, in index order
    fabric_env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    shards: tuple[ShardPlacement, ...]  # by rank; the first is the head
    gpu_class: str = ""
    fabric: str = ""  # on which the ranks meet; empty on one node
    head_address: str = ""  # where the ranks meet; empty on one node
    preempts: tuple[int, ...] = ()  # replicas of lower priority that must end first

    @property
    def head(self) -> ShardPlacement:
        return self.shards[0]

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(gpu for shard in self.shards for gpu in shard.gpus)

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(shard.node_name for shard in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    placement: Placement
    score: tuple[int | str, ...]  # lower is better


_STATUS = {
    NodeStatus.JOINING: Reason.JOINING,
    NodeStatus.UNREACHABLE: Reason.UNREACHABLE,
    NodeStatus.LOST: Reason.LOST,
    NodeStatus.QUARANTINED: Reason.QUARANTINED,
}


def place(
    snapshot: FleetSnapshot, profile: Profile, *, avoid: Collection[int] = (), taken: Collection[int] = ()
) -> Placement | Refusal:
    """Where one replica can run. `avoid`: nodes used only when no other fits; `taken`: GPUs promised in this tick."""
    if profile.nodes > 1:
        return Refusal(
            code="multi_node_unsupported",
            text=f"cannot place a replica over {profile.nodes} nodes: this version places on one node",
            hint="lower `nodes` to 1",
        )
    fits: list[_Fit] = []
    refusals: list[NodeRefusal] = []
    for node in sorted(snapshot.nodes, key=lambda each: each.name):
        found = _fit(node, profile, taken)
        if isinstance(found, NodeRefusal):
            refusals.append(found)
        else:
            fits.append(replace(found, score=(int(node.pk in avoid), *found.score)))
    if not fits:
        return fold(tuple(refusals))
    return min(fits, key=lambda fit: fit.score).placement


def _fit(node: NodeView, profile: Profile, taken: Collection[int]) -> _Fit | NodeRefusal:
    refusal = _standing(node) or _labels(node, profile) or _engine(node, profile)
    if refusal:
        return refusal
    if profile.gpus_total == 0:
        placement = Placement(shards=(ShardPlacement(rank=0, node=node.pk, node_name=node.name),))
        return _Fit(placement=placement, score=(0, node.shards, 0, node.name))
    return _cards(node, profile, taken)


def _standing(node: NodeView) -> NodeRefusal | None:
    if node.status is not NodeStatus.READY:
        silent = f" (silent for {node.silent_seconds:.0f} s)" if node.silent_seconds and node.silent_seconds > 1 else ""
        if node.status in (NodeStatus.JOINING, NodeStatus.QUARANTINED):
            silent = ""
        return NodeRefusal(
            node=node.name, reason=_STATUS[node.status], text=f"{node.name} is {node.status.value}{silent}"
        )
    if not node.schedulable:
        why = f" ({node.cordon_reason})" if node.cordon_reason else ""
        return NodeRefusal(node=node.name, reason=Reason.CORDONED, text=f"{node.name} is cordoned{why}")
    return None


def _labels(node: NodeView, profile: Profile) -> NodeRefusal | None:
    for key, value in sorted(profile.node_selector.items()):
        if node.labels.get(key) != value:
            has = f"{key}={node.labels[key]}" if key in node.labels else f"no label {key}"
            text = f"{node.name} has {has}, {key}={value} needed"
            return NodeRefusal(node=node.name, reason=Reason.LABELS, text=text)
    return None


def _engine(node: NodeView, profile: Profile) -> NodeRefusal | None:
    if profile.engine.value in node.engines:
        return None
    has = ", ".join(sorted(node.engines)) or "none"
    return NodeRefusal(
        node=node.name, reason=Reason.ENGINE, text=f"{node.name} cannot run {profile.engine} (its engines: {has})"
    )


def _cards(node: NodeView, profile: Profile, taken: Collection[int]) -> _Fit | NodeRefusal:
    if not node.gpus:
        return NodeRefusal(node=node.name, reason=Reason.NO_GPUS, text=f"{node.name} has no GPUs")
    present = {gpu.gpu_class for gpu in node.gpus}
    classes = profile.gpu_class or tuple(sorted(present))
    if not present & set(classes):
        text = f"{node.name} has {', '.join(sorted(present))}, {' or '.join(classes)} needed"
        return NodeRefusal(node=node.name, reason=Reason.NO_CLASS, text=text)
    refusal: NodeRefusal | None = None
    for preference, gpu_class in enumerate(classes):
        cards = [gpu for gpu in node.gpus if gpu.gpu_class == gpu_class]
        if not cards:
            continue
        found = _group(node, profile, cards, taken, gpu_class)
        if isinstance(found, NodeRefusal):
            refusal = refusal or found
            continue
        gpus, room = found
        pks = tuple(gpu.pk for gpu in gpus)
        shard = ShardPlacement(rank=0, node=node.pk, node_name=node.name, gpus=pks)
        placement = Placement(shards=(shard,), gpu_class=gpu_class)
        return _Fit(placement=placement, score=(preference, room - len(gpus), node.shards, node.name))
    assert refusal is not None
    return refusal


def _group(
    node: NodeView, profile: Profile, cards: list[GpuView], taken: Collection[int], gpu_class: str
) -> tuple[list[GpuView], int] | NodeRefusal:
    """The cards to take and how many free ones their domain had."""
    need = profile.gpus_per_node
    against = {gpu.pk: _against(gpu, profile, taken) for gpu in cards}
    free = sorted((gpu for gpu in cards if not against[gpu.pk]), key=lambda gpu: (gpu.index, gpu.pk))
    if len(free) < need:
        why = [f"GPU {gpu.index} {against[gpu.pk]}" for gpu in cards if against[gpu.pk]]
        reason = Reason.TOO_FEW_FREE
        if why and all("MiB free" in text for text in why):
            reason = Reason.MEMORY
        text = f"{node.name} has {len(free)} free {gpu_class}, {need} needed"
        text += f" ({'; '.join(why[:4])})" if why else ""
        held = tuple(sorted({gpu.holder for gpu in cards if gpu.holder}))
        return NodeRefusal(node=node.name, reason=reason, text=text, held_by=held)
    if need == 1 or profile.nvlink is NvlinkRule.OFF:
        return _tightest(_domains(free), need) or (free[:need], len(free))
    inside = _tightest(_domains(free), need)
    if inside:
        return inside
    unknown = [gpu for gpu in free if not gpu.domain]
    if profile.nvlink is NvlinkRule.PREFER and need == 2 and len(unknown) >= 2:
        return unknown[:2], len(unknown)
    largest = max((len(group) for group in _domains(free)), default=1)
    text = f"{node.name} has {largest} free {gpu_class} in one NVLink domain, {need} needed"
    odd = [
        f"GPU {gpu.index}: {gpu.problem}" for gpu in free if gpu.problem
    ]  # a fabric that is not ready splits cards off
    text += f" ({'; '.join(odd[:4])})" if odd else ""
    return NodeRefusal(node=node.name, reason=Reason.DOMAIN, text=text)


def _domains(free: Iterable[GpuView]) -> list[list[GpuView]]:
    """Cards by domain; one without a known domain stands alone."""
    groups: dict[str, list[GpuView]] = {}
    for gpu in free:
        groups.setdefault(gpu.domain or f"alone-{gpu.pk}", []).append(gpu)
    return [groups[key] for key in sorted(groups)]


def _tightest(groups: list[list[GpuView]], need: int) -> tuple[list[GpuView], int] | None:
    fitting = [group for group in groups if len(group) >= need]
    if not fitting:
        return None
    group = min(fitting, key=lambda each: (len(each), each[0].index))
    return group[:need], len(group)


def _against(gpu: GpuView, profile: Profile, taken: Collection[int]) -> str:
    """What stands against using a card, or nothing."""
    if not gpu.usable:
        return gpu.problem or "is not usable"
    if not gpu.schedulable:
        return "is cordoned"
    if gpu.holder:
        return f"is held by {gpu.holder}"
    if gpu.pk in taken:
        return "is promised to another replica"
    if gpu.foreign:
        return f"is used by {gpu.foreign}"
    need, total = profile.memory_mib_per_gpu, gpu.memory_total_mib
    if need is not None and total is not None and total - (gpu.memory_used_mib or 0) < need:
        return f"has {total - (gpu.memory_used_mib or 0)} MiB free, {need} needed"
    return ""
