"""Why a node does not fit, and how a refusal reads. Codes are closed; each has its words for the folded line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    JOINING = "joining"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    QUARANTINED = "quarantined"
    CORDONED = "cordoned"
    DRAINING = "draining"
    FLAPPING = "flapping"
    LABELS = "labels"
    ENGINE = "engine"
    NO_GPUS = "no_gpus"
    NO_CLASS = "no_class"
    AFFINITY = "affinity"
    ANTI_AFFINITY = "anti_affinity"
    UNHEALTHY = "unhealthy"
    GPU_CORDONED = "gpu_cordoned"
    FOREIGN = "foreign"
    CAPABILITY = "capability"
    MIG = "mig"
    SHARE = "share"
    MEMORY = "memory"
    TOO_FEW_FREE = "too_few_free"
    DOMAIN = "domain"
    NO_FABRIC = "no_fabric"
    FABRIC = "fabric"


#: How each reads when several nodes share it: "4 cordoned".
FOLDED = {
    Reason.JOINING: "still joining",
    Reason.UNREACHABLE: "unreachable",
    Reason.LOST: "lost",
    Reason.QUARANTINED: "quarantined",
    Reason.CORDONED: "cordoned",
    Reason.DRAINING: "draining",
    Reason.FLAPPING: "that come and go",
    Reason.LABELS: "without the labels",
    Reason.ENGINE: "without the engine",
    Reason.NO_GPUS: "without GPUs",
    Reason.NO_CLASS: "without GPUs of the class",
    Reason.AFFINITY: "without a model that affinity names",
    Reason.ANTI_AFFINITY: "with a model that anti_affinity names",
    Reason.UNHEALTHY: "with GPUs that can't be used",
    Reason.GPU_CORDONED: "with cordoned GPUs",
    Reason.FOREIGN: "with GPUs that others use",
    Reason.CAPABILITY: "with too low a compute capability",
    Reason.MIG: "with MIG slices alone",
    Reason.SHARE: "whose share of GPU memory is too small for the model",
    Reason.MEMORY: "with too little GPU memory",
    Reason.TOO_FEW_FREE: "with too few free GPUs",
    Reason.DOMAIN: "without enough free GPUs in one NVLink domain",
    Reason.NO_FABRIC: "without an active port on a named fabric",
    Reason.FABRIC: "on networks with too few nodes that fit",
}

#: `{fewer}` and `{memory}`: what the profile at hand has to change.
HINTS = {
    Reason.JOINING: "wait until the node has answered",
    Reason.UNREACHABLE: "look at the agent and the network of the node",
    Reason.LOST: "start the agent on the node again, or add another node",
    Reason.QUARANTINED: "see the node's page: two machines use one identity",
    Reason.CORDONED: "uncordon the node",
    Reason.FLAPPING: "look at the node's agent, network and power; uncordon it to use it at once",
    Reason.DRAINING: "wait for the drain to end and uncordon the node, or cancel it",
    Reason.LABELS: "label a node in its agent.yaml, or change node_selector",
    Reason.ENGINE: "install the engine on a node, or allow it in the node's policy",
    Reason.NO_GPUS: "add a node with GPUs, or set gpus: 0 for an engine that runs on the CPU",
    Reason.NO_CLASS: "name a class that the fleet has, or add such a node",
    Reason.AFFINITY: "start the model that affinity names there, or change affinity",
    Reason.ANTI_AFFINITY: "add a node, or change anti_affinity",
    Reason.UNHEALTHY: "see the problems of the cards on the node's page",
    Reason.GPU_CORDONED: "uncordon the cards",
    Reason.FOREIGN: "end the processes that use the cards",
    Reason.CAPABILITY: "name a newer class, or lower min_compute_capability",
    Reason.MIG: "switch MIG off on a card, or use one GPU",
    Reason.SHARE: "raise gpu_memory_utilization, lower max_model_len, or name a class with larger cards",
    Reason.MEMORY: "end what uses the cards' memory, or lower {memory}",
    Reason.TOO_FEW_FREE: "free cards{fewer}, or add a node",
    Reason.DOMAIN: "set nvlink: off if the group may cross domains",
    Reason.NO_FABRIC: "name the fabric in the node's agent.yaml and see its ports, or use one node",
    Reason.FABRIC: "free or add nodes on one fabric, or lower `nodes`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRefusal:
    node: str
    reason: Reason
    text: str  # "gpu-01 has 1 free h100-sxm-80gb, 4 needed (GPU 0 held by qwen/1)"
    held_by: tuple[str, ...] = ()
    free: int | None = None  # of `need` cards of `what`, where the reason is a number
    need: int = 0
    what: str = ""  # "h100-sxm-80gb in one NVLink domain"


class ChangeKind(StrEnum):
    """What a person can do so that something fits."""

    UNCORDON_NODE = "uncordon_node"
    CANCEL_DRAIN = "cancel_drain"
    RETURN_NODE = "return_node"  # bring a silent node back
    UNCORDON_GPUS = "uncordon_gpus"
    END_PROCESSES = "end_processes"  # of others
    RAISE_PORT = "raise_port"
    DRAIN_REPLICA = "drain_replica"  # it fits elsewhere
    STOP_REPLICA = "stop_replica"  # it does not
    SET_PROFILE = "set_profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step of a proposal: what to do to which thing."""

    kind: ChangeKind
    target: str  # name of a node, label of a replica; empty for the profile
    text: str  # an order: "uncordon gpu-03"
    gpus: tuple[int, ...] = ()  # indexes on the node
    values: Mapping[str, Any] = field(default_factory=dict)  # fields of the profile

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": self.kind.value, "target": self.target, "text": self.text}
        more = {"gpus": list(self.gpus), "set": dict(self.values)}
        return out | {name: value for name, value in more.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A change after which placement, asked anew, finds a place."""

    changes: tuple[Change, ...]
    nodes: tuple[str, ...]  # where it would go then

    @property
    def text(self) -> str:
        return f"{' and '.join(change.text for change in self.changes)}: it would go to {', '.join(self.nodes)}"

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "changes": [each.to_json() for each in self.changes], "nodes": list(self.nodes)}


def _none() -> tuple[Proposal, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why nothing can be placed: a code, one sentence, each node's first reason, a hint, and what would help.

    `propose` is asked for what would help only when someone looks: that costs far more than the refusal.
    """

    code: str
    text: str
    hint: str = ""
    nodes: tuple[NodeRefusal, ...] = ()
    propose: Callable[[], tuple[Proposal, ...]] = field(default=_none, repr=False, compare=False)

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        return self.propose()

    def to_json(self) -> dict[str, Any]:
        """What is stored of it; see is_news()."""
        nodes = [
            {"node": n.node, "reason": n.reason.value, "text": n.text, "held_by": list(n.held_by)} for n in self.nodes
        ]
        proposals = [proposal.to_json() for proposal in self.proposals]
        return {"code": self.code, "text": self.text, "hint": self.hint, "nodes": nodes, "proposals": proposals}


#: With these nothing that passes would help.
LASTING = frozenset({Reason.LABELS, Reason.ENGINE, Reason.NO_GPUS, Reason.NO_CLASS})


def is_news(refusal: Refusal, stored: Mapping[str, Any] | None) -> bool:
    """Whether a refusal says anything else than the one stored before it, figures apart: seconds of silence and free
    memory are other ones at every look, and a history of them would hide all else."""
    if stored is None or stored.get("code") != refusal.code:
        return True
    before = {(each.get("node"), each.get("reason")) for each in stored.get("nodes", ())}
    return before != {(each.node, each.reason.value) for each in refusal.nodes}


#: Up to this many nodes a refusal names each; above it counts them.
NAMED_NODES = 3


def fold(
    refusals: tuple[NodeRefusal, ...],
    *,
    fitting: int = 0,
    needed: int = 1,
    fewer: str = "",
    memory: str = "memory_mib_per_gpu",
) -> Refusal:
    """Many nodes' reasons in one line; few are named. `fitting`: nodes that could host one of `needed` ranks.

    The hint is of the commonest reason among nodes that could serve at all. `fewer` and `memory`: how the profile could
    ask for fewer cards ("lower tensor_parallel"), and its field for memory.
    """
    total = len(refusals)
    if not total:
        return Refusal(
            code="no_nodes",
            text="no node has joined yet",
            hint="on a GPU machine: python -m agent_client --server wss://… --join-secret-file FILE",
        )
    what = "; ".join(each.text for each in refusals) if total <= NAMED_NODES else _counted(refusals)
    near = [each.reason for each in refusals if each.reason not in LASTING] or [each.reason for each in refusals]
    commonest = max(Reason, key=near.count)
    hint = HINTS[commonest].format(fewer=f", {fewer}" if fewer else "", memory=memory)
    wanted = f", {needed} on one network needed" if needed > 1 else ""
    text = f"{fitting} of {total} node{'s' * (total != 1)} fit{wanted}: {what}"
    return Refusal(code="no_fit", text=text, hint=hint, nodes=refusals)


def _counted(refusals: tuple[NodeRefusal, ...]) -> str:
    """ "4 cordoned, 3 unreachable, 5 have 1 free h100-sxm-80gb in one NVLink domain, 4 needed"."""
    groups: dict[tuple[Reason, str, int], list[NodeRefusal]] = {}
    for refusal in refusals:
        groups.setdefault((refusal.reason, refusal.what, refusal.need), []).append(refusal)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return ", ".join(_words(reason, what, need, each) for (reason, what, need), each in ordered)


def _words(reason: Reason, what: str, need: int, refusals: list[NodeRefusal]) -> str:
    count = len(refusals)
    numbers = {refusal.free for refusal in refusals if refusal.free is not None}
    if not what or not numbers:
        return f"{count} {FOLDED[reason]}"
    free = f"{min(numbers)}" if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"
    return f"{count} {'has' if count == 1 else 'have'} {free} free {what}, {need} needed"
