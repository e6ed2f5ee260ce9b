"""Applies liveness verdicts: unreachable, lost, and the brake that holds evictions when most of the fleet is silent."""

import math
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet import clock, doorbell
from fleet.conf import fleet_conf
from fleet.domain import ages, flapping
from fleet.domain.liveness import JUDGED, LISTENER_FRESH_SECONDS, Limits, NodeSilence, judge
from fleet.domain.states import NodeStatus, Severity
from fleet.models import Event, Listener, Node, Shard
from fleet.services import claims
from fleet.services.errors import FleetError, StaleTransition
from fleet.services.events import record
from fleet.services.replicas import recompute
from fleet.services.transitions import move_node, move_shard


def run() -> None:
    """Judge every node once."""
    now, conf = clock.now(), fleet_conf()
    limits = Limits(
        unreachable_after=conf.unreachable_after.total_seconds(),
        lost_after=conf.lost_after.total_seconds(),
        start_grace=conf.start_grace.total_seconds(),
        brake_share=conf.brake_share,
        brake_nodes=conf.brake_nodes,
        loss_spacing=conf.loss_spacing.total_seconds(),
    )
    brake = _newest(*_BRAKE_KINDS)
    verdict = judge(
        _silences(),
        listening_for=_listening_for(),
        since_last_loss=_since(_newest("node_lost"), now),
        since_hold=0.0 if _held(brake) else _since(brake, now),
        limits=limits,
    )
    for node in verdict.unreachable:
        _unreachable(node)
    for node in verdict.lost:
        _lost(node, now)
    if not verdict.deaf and bool(verdict.held) != bool(_held(brake)):
        _brake(verdict.held)
    if verdict.deaf and not deaf():
        _tell_deaf(conf.unreachable_after)


def _silences() -> list[NodeSilence]:
    rows: Any = Node.objects.filter(last_seen_at__isnull=False).annotate(now=Now())
    # Of a clock that was put back its listeners know, too: silence counts from then on.
    return [
        NodeSilence(
            pk=node.pk,
            name=node.name,
            status=NodeStatus(node.status),
            silent_seconds=_seconds(node.last_seen_at, node.now, unknown=math.inf),
            accepted=node.loss_accepted,
        )
        for node in rows
    ]


def hearing() -> tuple[datetime, datetime] | None:
    """The database's time, and since when by it agents could be heard without a gap; None when nothing listens."""
    rows: Any = Listener.objects.annotate(now=Now())
    fresh = [row for row in rows if _seconds(row.seen_at, row.now, unknown=math.inf) < LISTENER_FRESH_SECONDS]
    return (fresh[0].now, min(row.started_at for row in fresh)) if fresh else None


def _seconds(at: datetime, now: datetime, *, unknown: float) -> float:
    """How old a stamp is; `unknown`: where the clock was put back since."""
    found = ages.age(at, now)
    return unknown if found is None else found.total_seconds()


def unheard_for(node: Node) -> timedelta:
    """For how long it gave no sign of life that could have been heard."""
    found = hearing()
    if found is None or node.last_seen_at is None:
        return timedelta(0) if found is None else timedelta.max
    now, since = found
    silent = ages.age(node.last_seen_at, now)
    return max(now - since if silent is None else min(silent, now - since), timedelta(0))


def _listening_for() -> float | None:
    found = hearing()
    return None if found is None else (found[0] - found[1]).total_seconds()


def _newest(*kinds: str) -> Event | None:
    return Event.objects.filter(kind__in=kinds).order_by("-id").first()


def _since(event: Event | None, now: datetime) -> float | None:
    """Seconds since it was recorded; None: never, or before the clock was put back, from when on all silence counts."""
    found = None if event is None else ages.age(event.at, now)
    return None if found is None else found.total_seconds()


@transaction.atomic
def _unreachable(node: NodeSilence) -> None:
    text = f"silent for {node.silent_seconds:.0f} s"
    try:
        move_node(node.pk, NodeStatus.UNREACHABLE, reason=text)
    except StaleTransition:
        return
    rows: Any = Node.objects.annotate(now=Now())
    row = rows.get(pk=node.pk)
    if not flapping.damped(row.damped_until, row.now):
        record("node_unreachable", f"{node.name}: {text}", severity=Severity.WARNING, node_id=node.pk)


@transaction.atomic
def _lost(node: NodeSilence, now: datetime) -> None:
    """Its shards are lost and its cards free for the books; whether engines still run there is not claimed."""
    text = f"silent for {node.silent_seconds:.0f} s"
    try:
        move_node(node.pk, NodeStatus.LOST, reason=text)
    except StaleTransition:
        return
    record("node_lost", f"{node.name}: lost, {text}", severity=Severity.ERROR, node_id=node.pk)
    replicas: set[int] = set()
    for shard in Shard.objects.filter(node_id=node.pk).exclude(state__in=[*ENDED_SHARD_STATES, ShardState.LOST]):
        move_shard(shard.pk, ShardState.LOST, reason=f"node {node.name} is lost")
        claims.release(shard.pk)
        replicas.add(shard.replica_id)
    for replica_id in replicas:
        recompute(replica_id, now=now)
    doorbell.ring_routes()  # first: it costs little, and clients wait for it
    doorbell.ring_reconcile()


@transaction.atomic
def accept_losses(*, actor: str) -> tuple[str, ...]:
    """An operator's word against the brake: the nodes that are silent now may be declared lost, one after another.

    Each that is heard again is no longer accepted. Raises FleetError when nothing is held.
    """
    if not eviction_held():
        raise FleetError("nothing_held", "cannot accept losses: no eviction is held now")
    silent = Node.objects.filter(status=NodeStatus.UNREACHABLE)
    names = tuple(silent.order_by("name").values_list("name", flat=True))
    silent.update(loss_accepted=True)
    text = f"the loss of {len(names)} silent nodes is accepted: {', '.join(names[:10])}" + " …" * (len(names) > 10)
    record("loss_accepted", text, severity=Severity.WARNING, actor=actor)
    return names


def eviction_held() -> str:
    """The banner's sentence while evictions are held; empty otherwise."""
    return _held(_newest(*_BRAKE_KINDS))


def _held(brake: Event | None) -> str:
    return brake.text if brake is not None and brake.kind == _BRAKE_KINDS[0] else ""


def deaf() -> str:
    """The banner's sentence while no agent can be heard; empty otherwise."""
    told = _newest(*_DEAF_KINDS)
    return told.text if told is not None and told.kind == _DEAF_KINDS[0] else ""


#: When the control plane hears no agent, and when it does again.
_DEAF_KINDS = ("deaf_began", "deaf_ended")


@transaction.atomic
def _tell_deaf(after: timedelta) -> None:
    """One event when nothing has listened for as long as a node would have to be silent, and there are nodes."""
    rows: Any = Listener.objects.annotate(now=Now())
    newest = rows.order_by("-seen_at").first()
    silent = None if newest is None else ages.age(newest.seen_at, newest.now)
    if silent is None or silent < after or not Node.objects.filter(status__in=JUDGED).exists():
        return
    text = f"the control plane hears no agent: no listener has written for {silent.total_seconds():.0f} s"
    record("deaf_began", f"{text}; nothing is declared lost", severity=Severity.ERROR)


def hear_again(*, listener: str, gap: timedelta | None, restarted: bool) -> None:
    """A listener listens anew, within the caller's transaction. `gap`: since when it wrote nothing; None: not known,
    for the database's clock was put back or it is new. A start needs no word unless it ends an outage that was told."""
    long = gap is not None and gap >= fleet_conf().unreachable_after
    if not deaf() and (restarted or not long):
        return
    since = f" ({listener} had written nothing for {gap.total_seconds():.0f} s)" if gap is not None and long else ""
    text = f"agents are heard again{since}: silence counts from now on, and nothing was declared lost for it"
    record("deaf_ended", text, severity=Severity.WARNING)


#: When evictions begin to be held, and when that ends.
_BRAKE_KINDS = ("eviction_held", "eviction_released")


@transaction.atomic
def _brake(held: tuple[NodeSilence, ...]) -> None:
    """One event when evictions begin to be held, one when that ends."""
    holding = bool(eviction_held())
    if held and not holding:
        names = ", ".join(node.name for node in held[:5]) + (" …" if len(held) > 5 else "")
        text = f"evictions are held: {len(held)} nodes are silent at once ({names}); nothing is declared lost"
        record("eviction_held", text, severity=Severity.ERROR)
    elif not held and holding:
        record("eviction_released", "evictions are no longer held")
