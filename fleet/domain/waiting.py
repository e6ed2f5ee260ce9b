"""What a rollout waits for, in one sentence: worked out from what is there now, so that it is never out of date.

The order is that of fleet.domain.rollout: what is on its way holds everything else up, then come the nodes' answers.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from agent_client.protocol.states import ShardState
from fleet.domain.backoff import waits
from fleet.domain.drain import SERVING, live
from fleet.domain.placement import Placement
from fleet.domain.rollout import heads_for, serves, settled
from fleet.domain.room import UNTOLD, Room
from fleet.domain.states import CheckState, ReplicaState, ReplicaWish, RolloutState
from fleet.domain.types import FleetSnapshot, ModelView, NodeView, ReplicaView, RolloutView
from fleet.domain.words import counted, duration

_NAMED = 3  # of several nodes


def rollout_waits(model: ModelView, snapshot: FleetSnapshot, now: datetime, *, room: Room | None = None) -> str:
    """ "it waits for …"; empty when nothing but the next look at the fleet is missing, or nothing is under way.

    `room`: asked why a replica has to end before its successor can start; without it that is not told.
    """
    rollout = model.rollout
    if rollout is None:
        return ""
    if rollout.state is RolloutState.PAUSED:
        return "it waits to be resumed: it is paused"
    rows = [each for each in snapshot.replicas if each.model == model.pk and each.wish is ReplicaWish.RUN]
    look = _Look(model, rollout, sorted(rows, key=lambda each: (each.created_at, each.pk)), snapshot, now, room)
    found = look.on_its_way() or look.substitute() or look.profile() or look.answers()
    return f"it waits for {found}" if found else ""


class _Look:
    """The facts of one rollout; each method tells what is in its way of one kind, or nothing."""

    def __init__(
        self,
        model: ModelView,
        rollout: RolloutView,
        rows: list[ReplicaView],
        snapshot: FleetSnapshot,
        now: datetime,
        room: Room | None,
    ) -> None:
        self.model, self.rollout, self.target, self.rows = model, rollout, rollout.target, rows
        self.now, self.room = now, room
        self.nodes = {node.pk: node for node in snapshot.nodes}
        self.labels = {each.pk: each.label for each in snapshot.replicas}

    def on_its_way(self) -> str:
        """The first replica that goes over and is not there yet."""
        for row in self.rows:
            if heads_for(row) == self.target and not settled(row, self.target):
                return self._leaving(row) if row.revision != self.target and live(row) else self._coming(row)
        return ""

    def _leaving(self, row: ReplicaView) -> str:
        """It gives its own cards to its next revision."""
        where = _on(row, self.nodes)
        head = next((s for s in live(row) if s.rank == 0 and s.epoch == row.attempt), None)
        ending = f"{row.label} to end{where}, before it starts at revision {self.target}{_silent(row, self.nodes)}"
        if head is None or not head.draining or head.state not in SERVING or head.drain_deadline_at is None:
            return ending
        seconds = (head.drain_deadline_at - self.now).total_seconds()
        inside = f" with {counted(head.running, 'request')} in it" if head.running else ""
        limit = f"for {duration(seconds)} at most" if seconds > 0 else "and its time is over"
        return f"{ending}: it is drained{inside}, {limit}{self._no_room()}"

    def _coming(self, row: ReplicaView) -> str:
        shards = [shard for shard in live(row) if shard.epoch == row.attempt]
        if shards and row.revision == self.target:
            state = _behind(shard.state for shard in shards).replace("_", " ")
            return (
                f"{row.label} to be ready at revision {self.target}{_on(row, self.nodes)}: "
                f"it is {state}{_silent(row, self.nodes)}"
            )
        if live(row):
            return f"what is left of {row.label} to end{_on(row, self.nodes)}{_silent(row, self.nodes)}"
        if row.revision == self.target and row.next_try_at is not None and waits(row.next_try_at, self.now):
            left = duration((row.next_try_at - self.now).total_seconds())
            return f"the next try of {row.label} at revision {self.target}, in {left}"
        return f"a place for {row.label} at revision {self.target}"

    def substitute(self) -> str:
        """One that takes over for another reason than the rollout: a node is drained."""
        for row in self.rows:
            if row.replaces in self.labels:
                why = "" if row.state is ReplicaState.READY else f": it is {row.state}"
                return f"{row.label} to take over from {self.labels[row.replaces]}{why}"
        return ""

    def profile(self) -> str:
        if self._next() is None or self.model.profile_of(self.target) is not None:
            return ""
        return f"a profile that can be read: that of revision {self.target} can't ({self.model.profile_error})"

    def answers(self) -> str:
        """Of nodes that were asked whether they could run it."""
        asked = [pk for pk, check in self.rollout.checks.items() if check.state is CheckState.OPEN]
        row = self._next()
        if not asked or row is None:
            return ""
        names = sorted(self.nodes[pk].name if pk in self.nodes else "a node" for pk in asked)
        told = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        silent = _quiet(self.nodes[pk] for pk in asked if pk in self.nodes)
        return f"the answer of {told} whether revision {self.target} could run there{silent}{self._no_room()}"

    def _next(self) -> ReplicaView | None:
        return next((row for row in self.rows if heads_for(row) != self.target and serves(row)), None)

    def _no_room(self) -> str:
        """Why one has to end first: nothing else is free."""
        profile = self.model.profile_of(self.target)
        if self.room is None or profile is None:
            return ""
        found = self.room.place(profile, model=self.model.pk)
        if isinstance(found, Placement) or found is UNTOLD:
            return ""
        return f"; a substitute beside it has no room: {found.text}"


def _on(row: ReplicaView, nodes: Mapping[int, NodeView]) -> str:
    names = sorted({nodes[shard.node].name for shard in live(row) if shard.node in nodes})
    return f" on {', '.join(names)}" if names else ""


def _silent(row: ReplicaView, nodes: Mapping[int, NodeView]) -> str:
    pks = sorted({shard.node for shard in live(row)})
    return _quiet(nodes[pk] for pk in pks if pk in nodes)


def _quiet(nodes: Iterable[NodeView]) -> str:
    """Nothing moves on a node that is not heard."""
    return "".join(
        f"; {node.name} is {node.status}"
        + (f", silent for {duration(node.silent_seconds)}" if node.silent_seconds is not None else "")
        for node in nodes
        if not node.heard
    )


def _behind(states: Iterable[ShardState]) -> ShardState:
    """The state of the rank that is furthest from being ready."""
    order = list(ShardState)
    return min(states, key=order.index)
