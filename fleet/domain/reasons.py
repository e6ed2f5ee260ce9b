"""Why a node does not fit, and how a refusal reads. Codes are closed; each has its words for the folded line."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    JOINING = "joining"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    QUARANTINED = "quarantined"
    CORDONED = "cordoned"
    LABELS = "labels"
    ENGINE = "engine"
    NO_GPUS = "no_gpus"
    NO_CLASS = "no_class"
    MEMORY = "memory"
    TOO_FEW_FREE = "too_few_free"
    DOMAIN = "domain"


#: How each reads when several nodes share it: "4 cordoned".
FOLDED = {
    Reason.JOINING: "still joining",
    Reason.UNREACHABLE: "unreachable",
    Reason.LOST: "lost",
    Reason.QUARANTINED: "quarantined",
    Reason.CORDONED: "cordoned",
    Reason.LABELS: "without the labels",
    Reason.ENGINE: "without the engine",
    Reason.NO_GPUS: "without GPUs",
    Reason.NO_CLASS: "without GPUs of the class",
    Reason.MEMORY: "with too little GPU memory",
    Reason.TOO_FEW_FREE: "with too few free GPUs",
    Reason.DOMAIN: "without enough free GPUs in one NVLink domain",
}

HINTS = {
    Reason.JOINING: "wait until the node has answered",
    Reason.UNREACHABLE: "look at the agent and the network of the node",
    Reason.LOST: "start the agent on the node again, or add another node",
    Reason.QUARANTINED: "see the node's page: two machines use one identity",
    Reason.CORDONED: "uncordon the node",
    Reason.LABELS: "label a node in its agent.yaml, or change node_selector",
    Reason.ENGINE: "install the engine on a node, or allow it in the node's policy",
    Reason.NO_GPUS: "add a node with GPUs, or set gpus: 0 for an engine that runs on the CPU",
    Reason.NO_CLASS: "name a class that the fleet has, or add such a node",
    Reason.MEMORY: "end what uses the cards' memory, or lower memory_mib_per_gpu",
    Reason.TOO_FEW_FREE: "free cards, lower tensor_parallel, or add a node",
    Reason.DOMAIN: "set nvlink: off if the group may cross domains",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRefusal:
    node: str
    reason: Reason
    text: str  # "gpu-01 has 1 free h100-sxm-80gb, 4 needed (GPU 0 held by qwen/1)"
    held_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why nothing can be placed: a code, one sentence, each node's first reason, a hint."""

    code: str
    text: str
    hint: str = ""
    nodes: tuple[NodeRefusal, ...] = ()

    def to_json(self) -> dict[str, Any]:
        nodes = [
            {"node": n.node, "reason": n.reason.value, "text": n.text, "held_by": list(n.held_by)} for n in self.nodes
        ]
        return {"code": self.code, "text": self.text, "hint": self.hint, "nodes": nodes}


#: Up to this many nodes a refusal names each; above it counts them.
NAMED_NODES = 3


def fold(refusals: tuple[NodeRefusal, ...]) -> Refusal:
    """Many nodes' reasons in one line; few are named."""
    total = len(refusals)
    if not total:
        return Refusal(
            code="no_nodes",
            text="no node has joined yet",
            hint="on a GPU machine: python -m agent_client --server wss://… --join-secret-file FILE",
        )
    if total <= NAMED_NODES:
        what = "; ".join(refusal.text for refusal in refusals)
    else:
        counts: dict[Reason, int] = {}
        for refusal in refusals:
            counts[refusal.reason] = counts.get(refusal.reason, 0) + 1
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0].value))
        what = ", ".join(f"{count} {FOLDED[reason]}" for reason, count in ordered)
    commonest = max(Reason, key=lambda reason: sum(refusal.reason is reason for refusal in refusals))
    return Refusal(
        code="no_fit", text=f"0 of {total} node{'s' * (total != 1)} fit: {what}", hint=HINTS[commonest], nodes=refusals
    )
