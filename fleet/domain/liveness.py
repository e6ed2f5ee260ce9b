"""Which silent nodes are unreachable or lost. Ages are seconds by the database's clock; no other clock is looked at."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fleet.domain.states import NodeStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSilence:
    pk: int
    name: str
    status: NodeStatus
    silent_seconds: float
    accepted: bool = False  # an operator accepts its loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    unreachable_after: float
    lost_after: float
    start_grace: float
    brake_share: float
    brake_nodes: int
    loss_spacing: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    unreachable: tuple[NodeSilence, ...] = ()
    lost: tuple[NodeSilence, ...] = ()
    held: tuple[NodeSilence, ...] = ()  # silent together with most of the fleet: none of them is lost for that
    deaf: bool = False  # nothing is judged: we may be the silent ones


#: The others are gone already, or nobody's to judge.
JUDGED = (NodeStatus.JOINING, NodeStatus.READY, NodeStatus.UNREACHABLE)
#: A listener that has not flushed for this long is not listening.
LISTENER_FRESH_SECONDS = 5.0


def judge(
    nodes: Iterable[NodeSilence],
    *,
    listening_for: float | None,
    since_last_loss: float | None,
    since_hold: float | None = None,
    limits: Limits,
) -> Verdict:
    """`listening_for`: seconds for which a fresh listener has been up without a gap; None without one.

    Silence counts from then on alone: what was said while nobody could hear it is no sign of death. In the same way a
    node that was silent with most of the fleet has all its time again from the hold's end (`since_hold`, in seconds;
    None: there was none), since they come back one after another.
    """
    if listening_for is None or listening_for < limits.start_grace:
        return Verdict(deaf=True)
    judged = [replace(n, silent_seconds=min(n.silent_seconds, listening_for)) for n in nodes if n.status in JUDGED]
    silent = [n for n in judged if n.silent_seconds >= limits.unreachable_after]
    unreachable = tuple(n for n in silent if n.status is not NodeStatus.UNREACHABLE)
    calm_for = listening_for if since_hold is None else since_hold
    gone = sorted(
        (n for n in silent if n.status is NodeStatus.UNREACHABLE and n.silent_seconds >= limits.lost_after),
        key=lambda n: (-n.silent_seconds, n.name),
    )
    accepted = [n for n in gone if n.accepted]
    if len(silent) >= limits.brake_nodes and len(silent) >= limits.brake_share * len(judged):
        held = tuple(n for n in silent if not n.accepted)
        return Verdict(unreachable=unreachable, lost=tuple(accepted), held=held)
    may = calm_for >= limits.lost_after and (since_last_loss is None or since_last_loss >= limits.loss_spacing)
    others = [n for n in gone if not n.accepted]
    return Verdict(unreachable=unreachable, lost=(*accepted, *(others[:1] if may else ())))
