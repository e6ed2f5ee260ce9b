"""Nodes come, prove themselves, and go silent. Identity is decided here; liveness by services.liveness."""

import hashlib
import hmac
import math
import secrets
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from django.db import transaction
from django.db.models.functions import Now

from agent_client.protocol.messages import Desired, Register
from fleet import doorbell
from fleet.conf import fleet_conf
from fleet.domain.states import NodeStatus, Severity
from fleet.models import AgentSession, Event, Node
from fleet.services import inventory, liveness, returns
from fleet.services.commands import desired_for
from fleet.services.errors import FleetError
from fleet.services.events import record
from fleet.services.reports import apply_shards
from fleet.services.transitions import move_node

PAST_BOOTS_KEPT = 20
#: Of a heartbeat under way, before a silent agent counts as gone.
TAKEOVER_SLACK = timedelta(seconds=5)
#: The code that turns another boot away for now, and how its session ends in the books.
STILL_HEARD = "still_heard"
TURNED_AWAY = "turned away: an agent of another boot was heard at"
#: A dead agent's last heartbeat may be written down only after another was turned away; a second one is a live one's.
LAST_WORDS = 1
#: A machine that is refused the same name again and again is an event this often.
SAME_REFUSAL = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a registered agent is told, and what its consumer needs."""

    node_id: int
    node_name: str
    node_uid: str
    session_id: int
    desired: Desired
    credential: str | None  # only when the identity is new


def register_node(*, message: Register, remote: str, now: datetime) -> Admission:
    """Admit an agent: find or issue its identity, open its session, store what it brought. Raises FleetError."""
    try:
        return _register(message, remote, now)
    except FleetError as error:
        # After the roll-back, so that the refusal is told although nothing else of it is kept.
        if error.code == "node_id_taken":
            node_id = Node.objects.filter(name=message.node_id).values_list("pk", flat=True).first()
            data = {"from": _machine(remote)}
            told = Event.objects.filter(
                kind=error.code, at__gt=now - SAME_REFUSAL, data=data, node__name=message.node_id
            )
            if not told.exists():  # it tries again for ever
                record(error.code, error.detail, severity=Severity.WARNING, node_id=node_id, data=data)
        raise


def _register(message: Register, remote: str, now: datetime) -> Admission:
    with transaction.atomic():
        node, credential = _identify(message, remote)
        pair = f"{message.machine_id}/{message.boot_id}"
        previous = f"{node.machine_id}/{node.boot_id}" if node.boot_id else pair
        refusal = _meet_another_boot(node, message, remote) if pair != previous else None
        if refusal is None:
            return _admit(node, message, remote, credential, rebooted=pair != previous, previous=previous, now=now)
    raise refusal  # what was written of it stays


def _meet_another_boot(node: Node, message: Register, remote: str) -> FleetError | None:
    """A reboot, which means that its engines are dead; or a copy of the machine, beside which they live on.

    So a reboot is believed once nothing was heard of the boot before for a heartbeat, which is less than machines need
    to boot; of another machine for as long as makes a node unreachable. A boot that was superseded never comes back by
    itself, and one that is heard after another was turned away lives beside that: two machines.
    """
    conf = fleet_conf()
    silent, needed = liveness.unheard_for(node), conf.unreachable_after
    if message.machine_id == node.machine_id:
        needed = min(needed, conf.heartbeat + TAKEOVER_SLACK)
    pair = f"{message.machine_id}/{message.boot_id}"
    if pair not in node.past_boots and silent >= needed:
        return None
    if pair in node.past_boots or _turn_away(node, message, remote) > LAST_WORDS:
        _quarantine(node, remote)
        return _quarantined(node)
    wait = math.ceil((needed - silent).total_seconds())
    return FleetError(
        STILL_HEARD,
        f"cannot register {node.name} from {_machine(remote)} yet: an agent of another boot of it was heard "
        f"{silent.total_seconds():.0f} s ago",
        f"after a reboot it gets in by itself in {wait} s; on a copy of the machine run `python -m agent_client join`",
    )


def _turn_away(node: Node, message: Register, remote: str) -> int:
    """How often the other boot was heard anew between tries of this one. No clock is asked: it may be put back, and
    what was heard before is then stamped anew, but never later than it was."""
    tries = AgentSession.objects.filter(node=node, boot_id=message.boot_id, close_reason__startswith=TURNED_AWAY)
    reasons = list(tries.order_by("pk").values_list("close_reason", flat=True))
    reason = f"{TURNED_AWAY} {node.last_seen_at}"
    if reason not in reasons[-1:]:
        reasons.append(reason)
        AgentSession.objects.create(
            node=node,
            remote=remote[:100],
            instance_id=message.instance_id[:64],
            boot_id=message.boot_id[:64],
            closed_at=Now(),
            close_reason=reason,
        )
    heard = [datetime.fromisoformat(each.removeprefix(TURNED_AWAY).strip()) for each in reasons]
    return sum(later > earlier for earlier, later in pairwise(heard))


def _identify(message: Register, remote: str) -> tuple[Node, str | None]:
    node: Node | None
    if message.node_uid:
        node = _by_uid(message)
    else:
        node = Node.objects.select_for_update().filter(name=message.node_id).first()
        if node is not None:
            _refuse_foreign(node, message, remote)
    if node is not None and node.status == NodeStatus.QUARANTINED:
        raise _quarantined(node)
    if node is not None and message.node_uid:
        return node, None
    credential = secrets.token_urlsafe(32)
    digest = hashlib.sha256(credential.encode()).hexdigest()
    if node is None:
        if not message.node_id.strip() or len(message.node_id) > 253:
            raise FleetError("bad_node_id", f"cannot register {message.node_id[:80]!r}: node_id must be 1 to 253 long")
        node = Node.objects.create(name=message.node_id, credential_sha256=digest)
        record("node_joined", f"{node.name} joined from {remote}", node_id=node.pk)
    else:
        Node.objects.filter(pk=node.pk).update(credential_sha256=digest)
        record("node_identity_renewed", f"{node.name} came without its identity from {remote}", node_id=node.pk)
    return node, credential


def _by_uid(message: Register) -> Node:
    try:
        node = Node.objects.select_for_update().filter(uid=uuid.UUID(message.node_uid)).first()
    except ValueError:
        node = None
    if node is None:
        raise FleetError(
            "identity_unknown",
            f"cannot register {message.node_id}: its identity is not known here; the node was deleted, or this is "
            "another control plane",
            "run `python -m agent_client join` on the node to enrol it anew",
        )
    digest = hashlib.sha256((message.credential or "").encode()).hexdigest()
    if not hmac.compare_digest(digest, node.credential_sha256):
        raise FleetError(
            "identity_refused",
            f"cannot register {message.node_id}: the credential does not belong to this identity",
            "run `python -m agent_client join` on the node to enrol it anew",
        )
    return node


def _refuse_foreign(node: Node, message: Register, remote: str) -> None:
    """A newcomer may take a known name over only as the same machine, and only when its agent was not heard for long:
    one that is just reconnecting, as all are when the control plane has started, keeps its name."""
    hint = "give this agent another --node-id, or delete the old node in the admin"
    silent, needed = liveness.unheard_for(node), fleet_conf().unreachable_after + TAKEOVER_SLACK
    if node.machine_id and node.machine_id != message.machine_id:
        reason = "belongs to another machine"
    elif silent >= needed:
        return
    elif node.connected:
        reason = f"is in use by a connected agent ({node.mgmt_addr or 'another agent'})"
    else:
        reason = f"is in use by an agent that may be on its way back, silent for {silent.total_seconds():.0f} s"
        wait = math.ceil((needed - silent).total_seconds())
        hint += f"; an agent that has lost its state directory gets its name back by itself in {wait} s at the latest"
    detail = f"cannot register {node.name} from {_machine(remote)}: that node_id {reason}"
    raise FleetError("node_id_taken", detail, hint)


def _machine(remote: str) -> str:
    """Without the port, which is another one at each try."""
    return remote.rpartition(":")[0] or remote


def _quarantine(node: Node, remote: str) -> None:
    where = node.session.remote if node.session else "unknown"
    text = f"{node.name}: two machines use this identity, from {where} and {remote}; both are quarantined"
    move_node(node.pk, NodeStatus.QUARANTINED, reason=text, session=None, connected=False)
    record("node_quarantined", text, severity=Severity.ERROR, node_id=node.pk)
    doorbell.ring_nodes([node.pk])


def _quarantined(node: Node | None) -> FleetError:
    name = node.name if node else "the node"
    return FleetError(
        "quarantined",
        f"cannot register {name}: its identity is used by two machines, so both are quarantined; engines go on",
        "run `python -m agent_client join` on the copy, then release the node in the admin",
    )


def _admit(
    node: Node,
    message: Register,
    remote: str,
    credential: str | None,
    *,
    rebooted: bool,
    previous: str,
    now: datetime,
) -> Admission:
    AgentSession.objects.filter(node=node, closed_at__isnull=True).update(closed_at=now, close_reason="superseded")
    session = AgentSession.objects.create(
        node=node, remote=remote[:100], instance_id=message.instance_id[:64], boot_id=message.boot_id[:64]
    )
    past = [*node.past_boots, previous][-PAST_BOOTS_KEPT:] if rebooted else node.past_boots
    Node.objects.filter(pk=node.pk).update(
        session=session,
        connected=True,
        last_seen_at=Now(),
        hostname=message.hostname[:253],
        mgmt_addr=message.mgmt_addr[:253],
        machine_id=message.machine_id[:64],
        boot_id=message.boot_id[:64],
        instance_id=message.instance_id[:64],
        past_boots=past,
        agent_version=message.agent_version[:40],
        protocol_version=message.protocol,
        labels=dict(message.labels),
        fabrics=list(message.fabrics),
        engines=dict(message.engines),
    )
    inventory.store(node, message.inventory, message.inventory_fingerprint, now=now)
    apply_shards(node, message.shards, now=now, rebooted=rebooted)
    if rebooted:
        record("node_rebooted", f"{node.name} has rebooted", severity=Severity.WARNING, node_id=node.pk)
    return Admission(
        node_id=node.pk,
        node_name=node.name,
        node_uid=str(node.uid),
        session_id=session.pk,
        desired=desired_for(node.pk),
        credential=credential,
    )


@transaction.atomic
def verify_node(*, node_id: int, session_id: int, now: datetime) -> None:
    """Something sent down was answered: the stream works in both directions, so the node is ready."""
    node = Node.objects.filter(pk=node_id, session_id=session_id).first()
    if node is None or node.status == NodeStatus.READY:
        return
    returns.welcome(node_id)


@transaction.atomic
def close_session(*, session_id: int, reason: str, now: datetime) -> None:
    """A stream ended. Of an older session this changes nothing but its own row."""
    AgentSession.objects.filter(pk=session_id, closed_at__isnull=True).update(closed_at=now, close_reason=reason[:500])
    Node.objects.filter(session_id=session_id).update(connected=False)
