"""Whatever happens, and in whatever order: one process at most, every stop ends, the past changes nothing."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_client.machine import Attempt, Failure, Limits, Shard, effects, events, step, wake_at
from agent_client.protocol.states import ShardState
from tests.support.examples import examples

LIMITS = Limits(start=60.0, grace=10.0)
FAILURE = Failure(code="exited", detail="cannot run m/1")


class World:
    """A node with one shard: carries effects out late, or never, as a stubborn engine would."""

    def __init__(self) -> None:
        self.shard = Shard()
        self.now = 0.0
        self.alive: set[int] = set()  # epochs that have a process
        self.spawning: set[int] = set()
        self.undying: set[int] = set()
        self.answers: list[events.Event] = []  # of effects, not delivered yet
        self.reports: list[Attempt] = []

    def feed(self, event: events.Event) -> None:
        self.shard, found = step(self.shard, event, self.now)
        for effect in found:
            self.carry_out(effect)

    def carry_out(self, effect: effects.Effect) -> None:
        epoch = effect.epoch
        match effect:
            case effects.Check():
                self.answers.append(events.Checked(epoch=epoch))
            case effects.Foresee():
                refused = FAILURE if len(self.answers) % 2 == 1 else None
                self.answers.append(events.Foreseen(epoch=epoch, refused=refused))
            case effects.Spawn():
                assert not self.alive, f"{epoch} beside {self.alive}"
                assert not self.spawning
                self.spawning.add(epoch)
                self.answers.append(events.Spawned(epoch=epoch))
            case effects.SendTerm() if epoch not in self.undying:
                self.alive.discard(epoch)
            case effects.SendKill() if epoch not in self.undying:
                self.alive.discard(epoch)
            case effects.Explain():
                again = len(self.answers) % 2 == 1
                self.answers.append(events.Explained(epoch=epoch, failure=FAILURE, again=again))
            case effects.Report(attempt=attempt):
                self.reports.append(attempt)
            case _:
                pass

    def deliver(self, place: int) -> None:
        """One of the answers that are under way, in any order."""
        if self.answers:
            event = self.answers.pop(place % len(self.answers))
            if isinstance(event, events.Spawned):
                self.spawning.discard(event.epoch)
                self.alive.add(event.epoch)
            self.feed(event)

    def look(self) -> None:
        attempt = self.shard.attempt
        if attempt is not None and attempt.state in (ShardState.STOPPING, ShardState.STOP_STUCK):
            if attempt.epoch in self.alive:
                self.feed(events.Remaining(epoch=attempt.epoch, what="processes 12 do not die"))
            elif attempt.epoch not in self.spawning:
                self.feed(events.Emptied(epoch=attempt.epoch))

    def run(self, seconds: float) -> None:
        """Let time pass and everything under way arrive."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            self.deliver(0)
            self.look()
            due = wake_at(self.shard)
            if self.shard.attempt is not None and due is not None and due <= self.now:
                self.feed(events.Tick(epoch=self.shard.attempt.epoch))


EPOCHS = st.integers(1, 4)


def about(kind: type[events.Event], **fields: Any) -> st.SearchStrategy[events.Event]:
    return st.builds(kind, epoch=EPOCHS, **fields)


HAPPENINGS = st.one_of(
    about(events.Ordered, limits=st.just(LIMITS)),
    about(events.StopAsked, grace=st.sampled_from([0.0, 10.0])),
    about(events.DrainAsked, seconds=st.sampled_from([0.0, 30.0])),
    about(events.DrainCancelled),
    about(events.Exited),
    about(events.Answered),
    about(events.Missed, refused=st.booleans()),
    about(events.Progressed, phase=st.just("weights"), place=st.integers(1, 4)),
    about(events.Looked, requests=st.integers(0, 1), figures=st.tuples(st.integers(0, 2)), refused=st.booleans()),
    about(events.Tick),
)
STEPS = st.lists(
    st.one_of(
        HAPPENINGS,
        st.tuples(st.just("deliver"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.floats(0, 40)),
        st.tuples(st.just("look"), st.just(0)),
        st.tuples(st.just("stubborn"), EPOCHS),
    ),
    max_size=40,
)


def play(world: World, steps: list[Any]) -> None:
    for what in steps:
        match what:
            case ("deliver", int(place)):
                world.deliver(place)
            case ("wait", float(seconds)):
                world.now += seconds
            case ("look", _):
                world.look()
            case ("stubborn", int(epoch)):
                world.undying.add(epoch)
            case events.Exited(epoch=epoch):
                if epoch in world.alive:
                    world.alive.discard(epoch)
                    world.feed(what)
            case _:
                world.feed(what)


@given(STEPS)
@settings(deadline=None, max_examples=examples(150))
def test_there_are_never_two_processes_of_one_shard(steps: list[Any]) -> None:
    world = World()
    play(world, steps)  # World asserts at each spawn
    world.run(60.0)


@given(STEPS)
@settings(deadline=None, max_examples=examples(150))
def test_a_stop_ends_in_stopped_or_stop_stuck(steps: list[Any]) -> None:
    world = World()
    play(world, steps)
    shard = world.shard
    if shard.following is not None:
        world.feed(events.StopAsked(epoch=shard.following.epoch, grace=1.0))
    if shard.attempt is None or shard.attempt.ended:
        return
    world.feed(events.StopAsked(epoch=shard.attempt.epoch, grace=1.0))
    world.run(60.0)
    ended = world.shard.attempt
    assert ended is not None
    stuck = ended.epoch in world.alive
    assert ended.state is (ShardState.STOP_STUCK if stuck else ShardState.STOPPED)
    assert world.reports[-1].state is ended.state


@given(STEPS, st.lists(HAPPENINGS, max_size=10))
@settings(deadline=None, max_examples=examples(150))
def test_what_an_older_attempt_still_says_changes_nothing(steps: list[Any], late: list[events.Event]) -> None:
    world = World()
    world.feed(events.Ordered(epoch=10, limits=LIMITS))
    play(world, [replace(step, epoch=10) if isinstance(step, events.Event) else step for step in steps])
    before = world.shard
    for event in late:
        assert step(before, event, world.now + 1000) == (before, ())


@given(STEPS)
@settings(deadline=None, max_examples=examples(100))
def test_reports_follow_the_moves_that_the_server_knows(steps: list[Any]) -> None:
    from fleet.domain.states import SHARD_TRANSITIONS

    world = World()
    play(world, steps)
    world.run(30.0)
    last: dict[int, ShardState] = {}
    for attempt in world.reports:
        before = last.get(attempt.epoch, ShardState.ASSIGNED)
        assert attempt.shown is before or attempt.shown in SHARD_TRANSITIONS[before], (before, attempt.shown)
        last[attempt.epoch] = attempt.shown
