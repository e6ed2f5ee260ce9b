"""A node that was unreachable or lost is heard again. One that comes back again and again is damped."""

from datetime import datetime
from typing import Any

from django.db.models.functions import Now

from fleet import doorbell
from fleet.conf import fleet_conf
from fleet.domain import flapping
from fleet.domain.states import NodeStatus, Severity
from fleet.models import Node
from fleet.services.errors import StaleTransition
from fleet.services.events import record
from fleet.services.liveness import eviction_held
from fleet.services.transitions import move_node

#: From these a node comes back; from the others it comes for the first time.
AWAY = (NodeStatus.UNREACHABLE, NodeStatus.LOST)


def welcome(node_id: int, *, reason: str = "") -> bool:
    """Ready, within the caller's transaction; False when somebody else has moved it meanwhile."""
    rows: Any = Node.objects.select_for_update().annotate(now=Now())
    node = rows.filter(pk=node_id).first()
    if node is None or node.status == NodeStatus.READY:
        return False
    before = node.damped_until
    try:
        move_node(node_id, NodeStatus.READY, reason=reason, **_returned(node))
    except StaleTransition:
        return False
    _tell(before, node)
    doorbell.ring_routes()  # first: it costs little, and clients wait for it
    doorbell.ring_reconcile()
    return True


def _returned(node: Any) -> dict[str, Any]:
    """What the return leaves on the row. While most of the fleet is silent the fault is not the node's."""
    if node.status not in AWAY or eviction_held():
        return {}
    count = flapping.returns(node.returns, node.returned_at, node.now)
    pause = flapping.damping(count, fleet_conf().flap_damping)
    node.returns, node.damped_until = count, node.now + pause if pause else None
    return {"returns": count, "returned_at": node.now, "damped_until": node.damped_until}


def _tell(damped_before: datetime | None, node: Any) -> None:
    """One line at most; of one that flaps not of each return, or the history would tell of nothing else."""
    flaps = node.status in AWAY and flapping.damped(node.damped_until, node.now)
    silence_untold = flapping.damped(damped_before, node.now) and node.status != NodeStatus.LOST
    if flaps and flapping.worth_telling(node.returns):
        seconds = (node.damped_until - node.now).total_seconds()
        text = f"{node.name} came back for the {node.returns}. time, each within an hour of the one before: nothing new"
        text += f" is placed there for {seconds:.0f} s"
        record("node_flaps", text, severity=Severity.WARNING, node_id=node.pk)
    elif not flaps or not silence_untold:
        record("node_ready", f"{node.name}: {node.status} → ready", node_id=node.pk)
