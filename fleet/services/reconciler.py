"""One tick: lock, read, decide, then do each action in its own transaction by compare-and-set.

The lock only saves work: two ticks at once collide on rows, and the loser drops its action.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.db import IntegrityError, transaction
from django.db.models import Q

from agent_client.profile import Profile
from fleet import snapshots
from fleet.conf import fleet_conf
from fleet.domain.actions import (
    Action,
    AskNode,
    CreateReplica,
    DrainShard,
    GiveUpShard,
    StartReplica,
    StopShard,
)
from fleet.domain.placement import Placement
from fleet.domain.reasons import Refusal
from fleet.domain.reconcile import Rules, reconcile
from fleet.domain.room import UNTOLD, SnapshotRoom, TooNarrow
from fleet.domain.types import FleetSnapshot, ReplicaView
from fleet.models import Lease
from fleet.services import creating, drains, effects, starting
from fleet.services.errors import FleetError
from fleet.services.liveness import hearing
from fleet.wishes import load_wishes

log = logging.getLogger(__name__)

#: What an action ends with when the fleet has moved on since it was decided: a row is another's by now, or gone.
_OVERTAKEN = (IntegrityError, FleetError, ObjectDoesNotExist)

LEASE_SECONDS = 30.0
#: After these there is nothing to decide before an agent has answered.
_LEADS_NOWHERE = (StartReplica, DrainShard, StopShard, GiveUpShard, AskNode)
#: Actions of one kind in one transaction: many are cheap, and a race costs no more than these.
MASS = 100
_MASSES: dict[type, Callable[[Sequence[Any], datetime], int]] = {
    CreateReplica: creating.create_all,
    StartReplica: starting.start_all,
}
#: Actions make room for others (a stop frees a number, a create makes something to place): so a few rounds a tick.
ROUNDS = 4


def run(*, holder: str, now: datetime, whole: bool = True) -> int | None:
    """Reconcile for a few rounds or until nothing is left; how many actions. None: another tick is under way.

    The first round looks at the whole fleet, or at what is not settled if it is not to be `whole`; later ones do so
    anyhow, for what is settled needed nothing in the first.
    """
    if not _take_lease(holder, now):
        return None
    conf = fleet_conf()
    heard = hearing()
    clock, since = heard or (now, now)  # nothing listens: nothing is late
    rules = Rules(clock=clock, heard_since=since, hung_after=conf.hung_after, rendezvous_ports=conf.rendezvous_ports)
    done = 0
    try:
        if whole:
            drains.cut(now)
        for number in range(ROUNDS):
            actions = _decide(now, rules, whole=whole and number == 0)
            count = _carry_out(actions, now)
            done += count
            if not count or all(isinstance(action, _LEADS_NOWHERE) for action in actions):
                break
    finally:
        Lease.objects.filter(name="reconcile", holder=holder).update(expires_at=None)
    return done


def _decide(now: datetime, rules: Rules, *, whole: bool) -> tuple[Action, ...]:
    if not whole:
        try:
            wishes = load_wishes(unsettled_only=True)
            return reconcile(wishes, now, room=LazyRoom(wishes), rules=rules)
        except TooNarrow:
            pass  # who would have to make room, and what stands against each node, is asked of all
    wishes = load_wishes()
    return reconcile(wishes, now, room=LazyRoom(wishes), rules=rules)


class LazyRoom:
    """The machines are read when something is to be placed, and at first their free cards alone: a full fleet has few.

    What stands against a node, and who would have to make room, needs all of them, and all replicas.
    """

    def __init__(self, wishes: FleetSnapshot) -> None:
        self._wishes = wishes
        self._promised: list[tuple[Placement, int]] = []
        self._free: SnapshotRoom | None = None
        self._all: SnapshotRoom | None = None
        self._held: SnapshotRoom | None = None  # where replicas in scope run

    def place(
        self, profile: Profile, *, model: int, avoid: Collection[int] = (), instead_of: ReplicaView | None = None
    ) -> Placement | Refusal:
        if self._all is None and profile.gpus_total:
            if self._free is None:
                self._free = snapshots.load_room(self._wishes, free_cards_only=True)
            found = self._free.place(profile, model=model, avoid=avoid, instead_of=instead_of)
            if isinstance(found, Placement):
                return found
        if self._wishes.scope is None:
            return self._whole().place(profile, model=model, avoid=avoid, instead_of=instead_of)
        if profile.preempts or not profile.gpus_total:
            raise TooNarrow  # whom it displaces, and how busy each node is, all replicas tell
        return UNTOLD

    def promise(self, placement: Placement, *, model: int) -> None:
        self._promised.append((placement, model))
        for room in (self._free, self._all):
            if room is not None:
                room.promise(placement, model=model)

    def cards_of(self, shard: int) -> tuple[int, ...]:
        return self._holdings().cards_of(shard)

    def freed_by(self, replica: ReplicaView) -> int:
        return self._holdings().freed_by(replica)

    def room_of(self, replicas: Collection[ReplicaView]) -> Mapping[int, int]:
        return self._holdings().room_of(replicas)

    def _holdings(self) -> SnapshotRoom:
        if self._wishes.scope is None:
            return self._whole()
        if self._held is None:
            nodes = {shard.node for replica in self._wishes.replicas for shard in replica.shards}
            self._held = snapshots.load_room(self._wishes, nodes=nodes)
        return self._held

    def _whole(self) -> SnapshotRoom:
        if self._all is None:
            self._all = snapshots.load_room(self._wishes)
            self._free = None  # from here on this one is asked, and a promise may be of a node without a free card
            for placement, model in self._promised:
                self._all.promise(placement, model=model)
        return self._all


def _take_lease(holder: str, now: datetime) -> bool:
    ends = now + timedelta(seconds=LEASE_SECONDS)
    over = Q(expires_at__isnull=True) | Q(expires_at__lt=now)
    over |= Q(expires_at__gt=ends + timedelta(seconds=LEASE_SECONDS))  # by a clock that was put back since
    free, mine = Lease.objects.filter(over, name="reconcile"), {"holder": holder, "expires_at": ends}
    if free.update(**mine):
        return True
    _, made = Lease.objects.get_or_create(name="reconcile")
    return made and free.update(**mine) == 1  # the very first tick of all


def _carry_out(actions: Collection[Action], now: datetime) -> int:
    """How many were done. What comes in masses (creations, starts) goes into the database in masses."""
    done = 0
    for kind, group in groupby(actions, key=type):
        rows = list(group)
        if kind not in _MASSES or len(rows) == 1:
            done += sum(_do(action, now) for action in rows)
            continue
        for begin in range(0, len(rows), MASS):
            done += _do_all(kind, rows[begin : begin + MASS], now)
    return done


def _do_all(kind: type, actions: Sequence[Any], now: datetime) -> int:
    try:
        with transaction.atomic():
            done = _MASSES[kind](actions, now)
    except _OVERTAKEN as error:
        # One of them lost a race: the others need not wait for the next tick.
        log.info("reconcile.one_by_one count=%d action=%s error=%s", len(actions), kind.__name__, error)
        return sum(_do(action, now) for action in actions)
    log.info("reconcile.done count=%d action=%s", done, kind.__name__)
    return done


def _do(action: Action, now: datetime) -> bool:
    """Carry one action out; False when the fleet has moved on, so that the next tick decides anew."""
    try:
        with transaction.atomic():
            changed = effects.carry_out(action, now)
    except _OVERTAKEN as error:
        log.info("reconcile.dropped action=%s error=%s", type(action).__name__, error)
        return False
    if changed:
        log.info("reconcile.done action=%s", action)
    return changed
