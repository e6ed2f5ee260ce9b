"""What may stand against a node or a card, whatever else is free: each rule once, with its words."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache

from agent_client.profile import EngineKind, Profile
from agent_client.profile.memory import MIB, estimate
from agent_client.profile.model_facts import ModelFacts
from agent_client.profile.rules import MOST_SHARE, floor_bytes, share_needed, told_share
from agent_client.profile.subject import Subject
from fleet.domain.reasons import NodeRefusal, Reason
from fleet.domain.states import NodeStatus
from fleet.domain.types import GpuView, NodeView

#: Share of a card's memory that an engine takes unless told otherwise: vLLM refuses to start where less is free.
USUAL_SHARE = {EngineKind.VLLM: 0.92}

_STATUS = {
    NodeStatus.JOINING: Reason.JOINING,
    NodeStatus.UNREACHABLE: Reason.UNREACHABLE,
    NodeStatus.LOST: Reason.LOST,
    NodeStatus.QUARANTINED: Reason.QUARANTINED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a profile asks of each card."""

    memory_mib: int | None = None
    share: float | None = None  # of the card's memory, where memory_mib is not said
    capability: tuple[int, ...] | None = None
    whole: bool = False  # no MIG slices: they can't form a group
    granted: float | None = None  # the share that the engine may use; below `floor` bytes of it the model can't run
    floor: int | None = None
    with_cache: bool = False  # the floor holds a cache beside the weights

    @classmethod
    def of(cls, profile: Profile, facts: ModelFacts | None = None) -> "Need":
        """`facts`: of the model, where they are known; the floor follows from them."""
        least = profile.min_compute_capability
        share = profile.gpu_memory_utilization or USUAL_SHARE.get(profile.engine)
        floor = None if facts is None else floor_bytes(Subject(profile=profile, facts=facts))
        cached = facts is not None and estimate(profile, facts).least is not None
        return cls(
            granted=share,
            floor=floor,
            with_cache=cached and profile.engine is EngineKind.VLLM,
            memory_mib=profile.memory_mib_per_gpu,
            share=share if profile.engine is EngineKind.VLLM else None,
            capability=version(least) if least else None,
            whole=profile.gpus_total > 1,
        )

    def memory_of(self, gpu: GpuView) -> int | None:
        if self.memory_mib is not None or self.share is None or gpu.memory_total_mib is None:
            return self.memory_mib
        return int(gpu.memory_total_mib * self.share)

    def unmet(self, gpu: GpuView) -> Reason | None:
        if self.whole and gpu.mig:
            return Reason.MIG
        if self.capability is not None and version(gpu.compute_capability) < self.capability:
            return Reason.CAPABILITY
        if self._too_small(gpu):
            return Reason.SHARE
        total, need = gpu.memory_total_mib, self.memory_of(gpu)
        if need is not None and total is not None and total - (gpu.memory_used_mib or 0) < need:
            return Reason.MEMORY
        return None

    def words(self, reason: Reason, gpu: GpuView) -> str:
        """What a card lacks, after its number."""
        if reason is Reason.MIG:
            return "is a MIG slice, which joins no group"
        if reason is Reason.CAPABILITY:
            least = ".".join(map(str, self.capability or ()))
            return f"has compute capability {gpu.compute_capability or 'unknown'}, {least} needed"
        if reason is Reason.SHARE:
            return self._share_words(gpu.memory_total_mib or 0)
        return f"has {gpu.memory_free_mib} MiB free, {self.memory_of(gpu)} needed"

    def _too_small(self, gpu: GpuView) -> bool:
        """Also when it is empty: the engine takes no more of it than its share."""
        if self.floor is None or self.granted is None or gpu.memory_total_mib is None:
            return False
        return int(gpu.memory_total_mib * MIB * self.granted) < self.floor

    def _share_words(self, total: int) -> str:
        floor = self.floor or 0
        told = told_share(self.granted or 0.0, total, floor, with_cache=self.with_cache)
        enough = share_needed(floor, total)
        return f"can't hold the model: {told}" + (f"; at least {enough:g} is needed" if enough <= MOST_SHARE else "")


@cache
def version(text: str) -> tuple[int, ...]:
    """Empty for what is not known."""
    return tuple(int(part) for part in text.split(".")) if text.replace(".", "").isdecimal() else ()


def standing(node: NodeView) -> NodeRefusal | None:
    if node.status is not NodeStatus.READY:
        silent = f" (silent for {node.silent_seconds:.0f} s)" if node.silent_seconds and node.silent_seconds > 1 else ""
        if node.status in (NodeStatus.JOINING, NodeStatus.QUARANTINED):
            silent = ""
        return _no(node, _STATUS[node.status], f"is {node.status.value}{silent}")
    if not node.schedulable:
        return _no(node, Reason.CORDONED, f"is cordoned{_why(node.cordon_reason)}")
    if node.draining:
        return _no(node, Reason.DRAINING, "is being drained")
    if node.damped_seconds:
        return _no(node, Reason.FLAPPING, f"comes and goes: nothing new for {node.damped_seconds:.0f} s more")
    return None


def labels(node: NodeView, profile: Profile) -> NodeRefusal | None:
    for key, value in sorted(profile.node_selector.items()):
        if node.labels.get(key) != value:
            has = f"{key}={node.labels[key]}" if key in node.labels else f"no label {key}"
            return _no(node, Reason.LABELS, f"has {has}, {key}={value} needed")
    return None


def engine(node: NodeView, profile: Profile) -> NodeRefusal | None:
    if profile.engine.value in node.engines:
        return None
    has = ", ".join(sorted(node.engines)) or "none"
    return _no(node, Reason.ENGINE, f"cannot run {profile.engine} (its engines: {has})")


def neighbours(
    node: NodeView, profile: Profile, runs: Mapping[str, Mapping[int, int]], own: str | None
) -> NodeRefusal | None:
    """`runs`: which models have live shards where; `own`: the model's name."""
    for name in profile.anti_affinity:
        if node.pk in runs.get(name, ()):
            return _no(node, Reason.ANTI_AFFINITY, f"runs {name}, which anti_affinity names")
    for name in binding(profile, runs, own):
        if node.pk not in runs.get(name, ()):
            return _no(node, Reason.AFFINITY, f"does not run {name}, which affinity names")
    return None


def binding(profile: Profile, runs: Mapping[str, Mapping[int, int]], own: str | None) -> tuple[str, ...]:
    """Affinities that count now: a model's own name does so once a copy of it runs."""
    return tuple(name for name in profile.affinity if name != own or runs.get(name))


Holder = Callable[[GpuView], str]


def against(gpu: GpuView, need: Need, taken: Collection[int], holder: Holder) -> tuple[Reason, str] | None:
    """What stands against a card, in words that follow its number."""
    if not gpu.usable:
        return Reason.UNHEALTHY, gpu.problem or "is not usable"
    if not gpu.schedulable:
        return Reason.GPU_CORDONED, f"is cordoned{_why(gpu.cordon_reason)}"
    if gpu.holder:
        return Reason.TOO_FEW_FREE, f"is held by {holder(gpu)}"
    if gpu.pk in taken:
        return Reason.TOO_FEW_FREE, "is promised to another replica"
    if gpu.foreign:
        size = f", {gpu.foreign_mib} MiB" if gpu.foreign_mib else ""
        return Reason.FOREIGN, f"is used by {gpu.foreign}{size}"
    reason = need.unmet(gpu)
    return None if reason is None else (reason, need.words(reason, gpu))


def _no(node: NodeView, reason: Reason, what: str) -> NodeRefusal:
    return NodeRefusal(node=node.name, reason=reason, text=f"{node.name} {what}")


def _why(reason: str) -> str:
    return f" ({reason})" if reason else ""
