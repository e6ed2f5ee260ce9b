"""What to do next so that the fleet becomes what is wished: snapshot in, actions out; level-triggered and idempotent.

A replica is one unit, fenced by its attempt: when a rank has ended, is lost or is being stopped, all the others are
stopped everywhere before the next attempt starts.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from agent_client.profile import Arrangement
from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet.domain import backoff
from fleet.domain.actions import (
    Action,
    CreateReplica,
    DeleteReplica,
    DrainShard,
    Explain,
    GiveUpShard,
    NodeDrained,
    RemoveReplica,
    StartReplica,
    StopShard,
)
from fleet.domain.deadlines import overdue
from fleet.domain.drain import live, stop, wind_down
from fleet.domain.placement import Placement
from fleet.domain.reasons import Refusal
from fleet.domain.rendezvous import choose_port, last_port, ports_in_use
from fleet.domain.rollout import Step, dropped, outdated, roll
from fleet.domain.room import UNTOLD, Room, TooNarrow
from fleet.domain.states import ReplicaState, ReplicaWish, RolloutState
from fleet.domain.types import FleetSnapshot, ModelView, ReplicaView

DEFAULT_DRAIN = timedelta(seconds=600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Settings that decide, and by which clock lateness is judged."""

    clock: datetime | None = None  # the database's; None: the same as `now`
    heard_since: datetime | None = None  # by that clock, since when agents could be heard; None: for ever
    hung_after: timedelta = timedelta(seconds=45)
    rendezvous_ports: range = range(21000, 22000)


def reconcile(snapshot: FleetSnapshot, now: datetime, *, room: Room, rules: Rules = Rules()) -> tuple[Action, ...]:
    """The actions of one tick, in the order in which to do them."""
    told: set[int] = set()
    actions: list[Action] = []
    for action in _Tick(snapshot, now, room, rules).actions():
        if isinstance(action, DrainShard | StopShard | GiveUpShard):
            if action.shard in told:
                continue  # a shard is told one thing at a time; the next tick sees what came of it
            told.add(action.shard)
        actions.append(action)
    return tuple(actions)


class _Tick:
    """One pass: what is promised in it (cards, ports, numbers) is kept in mind for the rest of it."""

    def __init__(self, snapshot: FleetSnapshot, now: datetime, room: Room, rules: Rules) -> None:
        self.snapshot, self.now, self.room, self.rules = snapshot, now, room, rules
        self.models = {model.pk: model for model in snapshot.models}
        scope = self.models.keys() if snapshot.scope is None else self.models.keys() & snapshot.scope
        self.decided = [self.models[pk] for pk in sorted(scope)]
        self.replicas = sorted(snapshot.replicas, key=lambda each: (each.created_at, each.pk))
        self.kept = {each.pk for each in self.replicas if self._is_kept(each)}
        self.by_pk = {each.pk: each for each in self.replicas}
        self.substitutes = {
            each.replaces: each
            for each in self.replicas
            if each.pk in self.kept and self._stands_in(each) and each.wish is ReplicaWish.RUN
        }
        self.by_model: dict[int, list[ReplicaView]] = {model.pk: [] for model in snapshot.models}
        for replica in self.replicas:
            if replica.model in self.by_model:
                self.by_model[replica.model].append(replica)
        self.ports = ports_in_use(self.replicas) | snapshot.meeting_points
        self.refused: dict[tuple[int, int, Collection[int]], Refusal] = {}
        self.going: set[int] = set()  # removed in this pass
        self.numbers = {model: {each.number for each in rows} for model, rows in self.by_model.items()}

    def actions(self) -> Iterable[Action]:
        for model in self.decided:
            yield from self._scale(model)
        for replica in sorted(self.replicas, key=self._rank):
            yield from self._one(replica)
        # After what waits for a place, so that nothing is promised twice.
        for replica in self.replicas:
            if replica.pk in self.kept and replica.wish is ReplicaWish.RUN:
                yield from self._evacuate(replica)
        for model in self.decided:
            yield from self._roll(model)
        yield from self._drained()

    def _is_kept(self, replica: ReplicaView) -> bool:
        return replica.model in self.models and replica.wish is not ReplicaWish.REMOVE

    def _stands_in(self, replica: ReplicaView) -> bool:
        """It is there beside the one that it is to replace, so it is not counted."""
        return replica.replaces is not None and replica.replaces in self.kept

    def _rank(self, replica: ReplicaView) -> tuple[int, datetime, int]:
        """Who is placed first: higher priority, then age."""
        model = self.models.get(replica.model)
        priority = model.profile.priority if model and model.profile and model.profile.preempts else 0
        return (-priority, replica.created_at, replica.pk)

    # -- how many ------------------------------------------------------------------------------------------------------

    def _scale(self, model: ModelView) -> Iterable[Action]:
        rows = self.by_model[model.pk]
        counted = [each for each in rows if each.pk in self.kept and not self._stands_in(each)]
        for _ in range(model.replicas - len(counted)):
            yield CreateReplica(model=model.pk, number=self._number(model.pk), revision=model.stable)
        spare = len(counted) - model.replicas
        if spare > 0:
            for replica in self._least_missed(model, counted, spare):
                yield self._remove(replica, "scaled down")
        for replica in rows:
            if replica.pk in self.kept and self._stands_in(replica):
                yield from self._substitute(model, replica)

    def _least_missed(self, model: ModelView, counted: list[ReplicaView], spare: int) -> list[ReplicaView]:
        """Not ready first, then the youngest, then the one that frees the largest NVLink domain.

        Where copies are spread, those that are ready leave the nodes with the most of them first.
        """
        rank = {each.pk: (-each.created_at.timestamp(), -self.room.freed_by(each), -each.pk) for each in counted}
        ready = {each.pk: each.state is ReplicaState.READY for each in counted}
        if model.profile is None or model.profile.arrangement is not Arrangement.SPREAD:
            return sorted(counted, key=lambda each: (ready[each.pk], rank[each.pk]))[:spare]
        homes = {each.pk: [shard.node for shard in live(each)] for each in counted}
        there = Counter(node for nodes in homes.values() for node in nodes)
        rest, leavers = list(counted), []
        for _ in range(spare):
            least = min(rest, key=lambda each: (ready[each.pk], -sum(there[n] for n in homes[each.pk]), rank[each.pk]))
            rest.remove(least)
            leavers.append(least)
            there.subtract(homes[least.pk])
        return leavers

    def _remove(self, replica: ReplicaView, reason: str) -> Action:
        self.going.add(replica.pk)
        return RemoveReplica(replica=replica.pk, reason=reason)

    def _substitute(self, model: ModelView, substitute: ReplicaView) -> Iterable[Action]:
        old = self.by_pk[substitute.replaces or 0]
        leaving = _evacuated_at(old) is not None
        if old.pk in self.going:
            return
        if not (leaving or outdated(model, old)) or old.wish is not ReplicaWish.RUN:
            yield self._remove(substitute, "nothing is to be replaced any more")
        elif substitute.wish is not ReplicaWish.RUN:
            # Nor may it stand in the way of another one until the drain's deadline.
            yield self._remove(substitute, f"it was stopped before it took over from {old.label}")
        elif not leaving and dropped(model, substitute):
            # It may never become ready, and nothing else is replaced meanwhile.
            yield self._remove(substitute, f"revision {substitute.revision} is wished no longer")
        elif substitute.state is ReplicaState.READY:
            paused = model.rollout is not None and model.rollout.state is RolloutState.PAUSED
            if leaving or not paused:
                yield self._remove(old, f"{substitute.label} took over")
        elif substitute.state is ReplicaState.PENDING and substitute.explanation_text:
            yield self._remove(substitute, "the room for it is gone")

    # -- one replica ---------------------------------------------------------------------------------------------------

    def _one(self, replica: ReplicaView) -> Iterable[Action]:
        model = self.models.get(replica.model)
        if model is None or replica.pk not in self.kept or replica.pk in self.going:
            yield from self._end(replica, model)
        elif replica.wish is ReplicaWish.STOP:
            yield from wind_down(
                replica, self.now, until=replica.drain_deadline_at or self.now, reason="stopped by wish"
            )
        else:
            yield from self._keep(replica, model)

    def _end(self, replica: ReplicaView, model: ModelView | None) -> Iterable[Action]:
        until = replica.drain_deadline_at or self._drain_until(replica, model)
        yield from wind_down(replica, self.now, until=until, reason="its replica is removed")
        if not live(replica):
            yield DeleteReplica(replica=replica.pk)

    def _drain_until(self, replica: ReplicaView, model: ModelView | None) -> datetime:
        """The profile's time for it, but not beyond a drain of its node."""
        profile = model.profile_of(replica.revision) if model else None
        allowed = timedelta(seconds=profile.drain_timeout_seconds) if profile else DEFAULT_DRAIN
        leaving = _evacuated_at(replica)
        until = self.now + allowed
        return until if leaving is None else min(until, leaving)

    def _keep(self, replica: ReplicaView, model: ModelView) -> Iterable[Action]:
        newest = [shard for shard in replica.shards if shard.epoch == replica.attempt]
        older = [shard for shard in live(replica) if shard.epoch < replica.attempt]
        yield from stop(older, "its attempt was replaced")
        running = [s for s in newest if s.state not in ENDED_SHARD_STATES and s.state is not ShardState.LOST]
        broken = len(running) < len(newest) or any(not shard.wanted for shard in newest)
        moves = replica.goal is not None and replica.goal != replica.revision
        if running:
            if broken:
                yield from stop(running, "another rank ended")
            elif replica.restart_requested:
                yield from wind_down(replica, self.now, until=replica.drain_deadline_at or self.now, reason="restart")
            elif moves:
                until = self._drain_until(replica, model)
                yield from wind_down(replica, self.now, until=until, reason="a new revision")
            elif late := self._overdue(replica, model):
                yield late
            return
        if backoff.waits(replica.next_try_at, self.now) and not replica.restart_requested and not moves:
            return
        if any(shard.state is not ShardState.LOST for shard in older):
            return  # its engines may still hold cards or a port
        yield from self._try(replica, model)

    def _overdue(self, replica: ReplicaView, model: ModelView) -> GiveUpShard | None:
        clock = self.rules.clock or self.now
        since = self.rules.heard_since or datetime.min.replace(tzinfo=UTC)
        profile = model.profile_of(replica.revision)
        return overdue(replica, profile, clock, heard_since=since, hung_after=self.rules.hung_after)

    # -- placing -------------------------------------------------------------------------------------------------------

    def _try(self, replica: ReplicaView, model: ModelView) -> Iterable[Action]:
        revision = replica.goal or replica.revision
        found = self._place(replica, model, revision)
        if isinstance(found, Refusal):
            yield from self._explain(replica, found)
            return
        if found.preempts:
            yield from self._preempt(found, replica)
            return
        self.room.promise(found, model=model.pk)
        port = None
        if len(found.shards) > 1:
            port = choose_port(self.rules.rendezvous_ports, self.ports, found.head.node, last=last_port(replica))
            if port is None:
                yield from self._explain(replica, _no_port(found, self.rules.rendezvous_ports))
                return
            self.ports.add((found.head.node, port))
        yield StartReplica(
            replica=replica.pk, attempt=replica.attempt, revision=revision, placement=found, rendezvous_port=port
        )

    def _explain(self, replica: ReplicaView, refusal: Refusal) -> Iterable[Action]:
        if refusal is UNTOLD:
            if replica.restart_requested or not replica.explanation_text:
                raise TooNarrow  # people wait for the words
            return  # they stand there already; the next tick over the whole fleet brings them up to date
        if replica.explanation_text != refusal.text or replica.restart_requested:
            yield Explain(replica=replica.pk, refusal=refusal)

    def _place(self, replica: ReplicaView, model: ModelView, revision: int) -> Placement | Refusal:
        profile = model.profile_of(revision)
        if profile is None:
            return Refusal(code="invalid_profile", text=model.why_unusable(revision))
        avoid = () if replica.avoid_node is None else (replica.avoid_node,)
        key = (model.pk, revision, avoid)
        # Cards are only taken in the course of a tick: what did not fit a moment ago does not fit now.
        known = self.refused.get(key)
        if known is not None:
            return known
        found = self.room.place(profile, model=model.pk, avoid=avoid)
        if isinstance(found, Refusal):
            self.refused[key] = found
        return found

    def _preempt(self, found: Placement, replica: ReplicaView) -> Iterable[Action]:
        """Replicas of lower priority make room; the card goes to the higher one, which is placed first."""
        self.room.promise(found, model=replica.model)
        for other in self.replicas:
            if other.pk in found.preempts:
                until = self._drain_until(other, self.models.get(other.model))
                yield from wind_down(other, self.now, until=until, reason=f"{replica.label} has a higher priority")

    # -- leaving nodes -------------------------------------------------------------------------------------------------

    def _evacuate(self, replica: ReplicaView) -> Iterable[Action]:
        """Away from a node or card that is drained: the replacement first, when there is room before the deadline."""
        deadline = _evacuated_at(replica)
        if deadline is None or replica.pk in self.going or self._stands_in(replica):
            return
        substitute = self.substitutes.get(replica.pk)
        if deadline <= self.now:
            if substitute is not None:
                yield self._remove(replica, "the drain's deadline has come")
            yield from stop(live(replica), "the drain's deadline has come", drained=True)
            return
        if substitute is not None:
            return
        model = self.models[replica.model]
        found = self._place(replica, model, replica.goal or replica.revision)
        if not isinstance(found, Placement) or found.preempts:
            return  # it serves on until the deadline
        if replica.state is not ReplicaState.READY:
            yield from stop(live(replica), "its node is drained", drained=True)
            return
        self.room.promise(found, model=model.pk)
        yield CreateReplica(
            model=model.pk,
            number=self._number(model.pk),
            revision=replica.goal or replica.revision,
            replaces=replica.pk,
        )

    # -- revisions -----------------------------------------------------------------------------------------------------

    def _roll(self, model: ModelView) -> Iterable[Action]:
        rows = [
            each
            for each in self.by_model[model.pk]
            if each.pk in self.kept and each.pk not in self.going and each.wish is ReplicaWish.RUN
        ]
        step = Step(room=self.room, number=lambda: self._number(model.pk))
        yield from roll(model, rows, step)

    def _number(self, model: int) -> int:
        """The lowest number that no replica of the model has; it is promised from now on."""
        used = self.numbers[model]
        number = next(n for n in range(1, len(used) + 2) if n not in used)
        used.add(number)
        return number

    def _drained(self) -> Iterable[Action]:
        held = {shard.node for replica in self.replicas for shard in live(replica)}
        yield from (NodeDrained(node=node) for node in self.snapshot.draining if node not in held)


def _evacuated_at(replica: ReplicaView) -> datetime | None:
    """When the drain of a node or card that its newest attempt is on ends."""
    deadlines = [s.evacuate_at for s in live(replica) if s.epoch == replica.attempt and s.evacuate_at is not None]
    return min(deadlines, default=None)


def _no_port(found: Placement, ports: range) -> Refusal:
    text = f"no port of {ports.start}-{ports.stop - 1} is left on {found.head.node_name} for the ranks to meet"
    return Refusal(code="no_rendezvous_port", text=text, hint="widen FLEET_RENDEZVOUS_PORTS")
