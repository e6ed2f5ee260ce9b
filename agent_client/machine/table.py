"""The rows: what each event does in each state. What a state has no row for is ignored. Pure.

A shard has one attempt at a time. A newer order waits in `following` until the attempt before it has *ended*, which
means that no process of it is left and its cards were seen empty: so there are never two. What already runs is ended
for it only when nothing is seen to stand against it; a refused order goes, and what runs stays. What an older attempt
still says changes nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from agent_client.machine import ending
from agent_client.machine.effects import (
    Check,
    Effect,
    Effects,
    Explain,
    Foresee,
    Forget,
    Probe,
    Remember,
    Report,
    Spawn,
    Watch,
)
from agent_client.machine.events import (
    Adopted,
    Answered,
    Checked,
    DrainAsked,
    DrainCancelled,
    Emptied,
    Event,
    Exited,
    Explained,
    Foreseen,
    Looked,
    Missed,
    NotSpawned,
    Ordered,
    Progressed,
    Remaining,
    Spawned,
    StopAsked,
    Tick,
)
from agent_client.machine.state import CLOSED, DEAD, REFUSED_PAUSE, SUSPECT, Attempt, Shard, Why
from agent_client.protocol.states import ShardState

S = ShardState
IDLE_LOOKS = 3  # so often in a row no request was seen: a drain is done
HUNG_GRACE = 5.0  # between TERM and KILL of what answers nobody
PROBE_LONGEST = 2.0  # pause between two questions to an engine that loads
RUNNING = (S.LOADING, S.READY, S.DRAINING)
NOT_ANSWERING = "not answering"  # the phase of a ready engine that is suspected

Step = tuple[Attempt, Effects]
Row = Callable[[Attempt, Any, float], Step]


def step(shard: Shard, event: Event, now: float) -> tuple[Shard, Effects]:
    attempt = shard.attempt
    if isinstance(event, Ordered | Adopted):
        return _take(shard, event, now)
    waiting = shard.following
    if waiting is not None and event.epoch == waiting.epoch and isinstance(event, StopAsked):
        waiting = replace(waiting, state=S.STOPPED, detail=event.reason or "stopped before it started")
        return replace(shard, following=None), (Report(epoch=waiting.epoch, attempt=waiting),)
    if waiting is not None and event.epoch == waiting.epoch and isinstance(event, Foreseen):
        return _foreseen(shard, waiting, event, now)
    if attempt is None or event.epoch != attempt.epoch:
        return shard, ()
    row = TABLE.get((attempt.state, type(event)), _ignore)
    attempt, effects = row(attempt, event, now)
    shard = replace(shard, attempt=attempt)
    if attempt.ended and shard.following is not None:
        begun, more = _begin(shard.following)
        return Shard(attempt=begun), effects + more
    return shard, effects


def wake_at(shard: Shard) -> float | None:
    """When a Tick is due."""
    attempt = shard.attempt
    if attempt is None or attempt.ended:
        return None
    times = [time for time in (attempt.deadline_at, attempt.probe_at) if time is not None]
    return min(times, default=None)


def _take(shard: Shard, event: Ordered | Adopted, now: float) -> tuple[Shard, Effects]:
    attempt, following = shard.attempt, shard.following
    highest = max(a.epoch if a else -1 for a in (attempt, following))
    if event.epoch <= highest:
        return shard, ()
    new = Attempt(epoch=event.epoch, limits=event.limits)
    if attempt is None or attempt.ended:
        begun, effects = _adopt(new, event, now) if isinstance(event, Adopted) else _begin(new)
        return Shard(attempt=begun), effects
    dropped: Effects = ()
    if following is not None:
        gone = replace(following, state=S.STOPPED, detail="replaced by a newer order")
        dropped = (Report(epoch=gone.epoch, attempt=gone),)
    if attempt.state in RUNNING:
        new, effects = ending.move(new, S.VALIDATING, Foresee(epoch=new.epoch))
        return Shard(attempt=attempt, following=new), dropped + effects
    stopped, effects = _make_room(Shard(attempt=attempt, following=new), attempt, now)
    return stopped, dropped + effects


def _foreseen(shard: Shard, waiting: Attempt, event: Foreseen, now: float) -> tuple[Shard, Effects]:
    if event.refused is not None:
        _, effects = ending.move(waiting, S.FAILED, told=event.refused)
        return replace(shard, following=None), effects
    if shard.attempt is None or shard.attempt.state not in RUNNING:
        return shard, ()  # it ends already
    return _make_room(shard, shard.attempt, now)


def _make_room(shard: Shard, attempt: Attempt, now: float) -> tuple[Shard, Effects]:
    asked = StopAsked(epoch=attempt.epoch, grace=attempt.limits.grace, reason="replaced by a newer order")
    return step(shard, asked, now)


def _begin(new: Attempt) -> Step:
    return ending.move(new, S.VALIDATING, Check(epoch=new.epoch))


def _adopt(new: Attempt, event: Adopted, now: float) -> Step:
    if not event.alive:
        return ending.end(new, now, explain=Explain(epoch=new.epoch, why=Why.EXITED, seconds=0.0), grace=0.0)
    new = replace(new, started_at=now, sign_at=now)
    watch = Watch(epoch=new.epoch)
    if event.ready and new.limits.answers:
        return ending.move(replace(new, probe_at=now + new.limits.quiet), S.READY, watch)
    return _load(new, now, watch)


def _ignore(attempt: Attempt, event: Event, now: float) -> Step:
    return attempt, ()


# --- from the order to the first answer ------------------------------------------------------------------------------


def _fetched_on(attempt: Attempt, event: Progressed, now: float) -> Step:
    """How far its model has come, or the check of its files; forwards or back, for a fetch may begin anew."""
    if (event.phase, event.share) == (attempt.phase, attempt.progress):
        return attempt, ()
    attempt = replace(attempt, phase=event.phase, progress=event.share)
    return attempt, (Report(epoch=attempt.epoch, attempt=attempt),)


def _checked(attempt: Attempt, event: Checked, now: float) -> Step:
    attempt = replace(attempt, phase="", progress=None)
    if event.refused is not None:
        return ending.move(attempt, S.FAILED, told=event.refused)
    return ending.move(replace(attempt, spawning=True), S.LAUNCHING, Spawn(epoch=attempt.epoch))


def _stop_unstarted(attempt: Attempt, event: StopAsked | DrainAsked, now: float) -> Step:
    return ending.move(replace(attempt, phase="", progress=None), S.STOPPED, detail="stopped before it started")


def _spawned(attempt: Attempt, event: Spawned, now: float) -> Step:
    attempt = replace(attempt, spawning=False, started_at=now, sign_at=now)
    return _load(attempt, now, Watch(epoch=attempt.epoch))


def _load(attempt: Attempt, now: float, *effects: Effect) -> Step:
    if not attempt.limits.answers:
        return ending.move(attempt, S.READY, *effects, Remember(epoch=attempt.epoch))
    attempt = replace(attempt, deadline_at=now + attempt.limits.start, probing=True)
    return ending.move(attempt, S.LOADING, *effects, Probe(epoch=attempt.epoch))


def _not_spawned(attempt: Attempt, event: NotSpawned, now: float) -> Step:
    return ending.move(replace(attempt, spawning=False), S.FAILED, Forget(epoch=attempt.epoch), told=event.failure)


def _stop_spawning(attempt: Attempt, event: StopAsked | DrainAsked, now: float) -> Step:
    """What the spawn made can be ended when it has come back."""
    grace = event.grace if isinstance(event, StopAsked) else attempt.limits.grace
    attempt = replace(attempt, limits=replace(attempt.limits, grace=grace), reason=event.reason)
    return ending.move(attempt, S.STOPPING, detail=event.reason)


def _progressed(attempt: Attempt, event: Progressed, now: float) -> Step:
    """Only what leads beyond the farthest point counts: a load that begins anew again and again is stuck."""
    reached = (event.place, event.share or 0.0)
    if reached <= attempt.reached:
        return attempt, ()
    deadline = now + attempt.limits.start
    attempt = replace(attempt, phase=event.phase, progress=event.share, reached=reached, deadline_at=deadline)
    attempt = replace(attempt, sign_at=now, overdue=False, last=False)
    return attempt, (Report(epoch=attempt.epoch, attempt=attempt),)


def _first_answer(attempt: Attempt, event: Answered, now: float) -> Step:
    attempt = replace(attempt, phase="", progress=None, deadline_at=None, probing=False, misses=0, sign_at=now)
    attempt = replace(attempt, probe_at=now + attempt.limits.quiet, overdue=False, last=False)
    return ending.move(attempt, S.READY, Remember(epoch=attempt.epoch))


def _not_yet(attempt: Attempt, event: Missed, now: float) -> Step:
    if attempt.last:
        explain = Explain(epoch=attempt.epoch, why=Why.NOT_READY, seconds=attempt.limits.start)
        return ending.end(attempt, now, explain=explain, grace=attempt.limits.grace)
    if attempt.overdue:
        return _ask_last(attempt)
    pause = min(attempt.pause * 1.5, PROBE_LONGEST)
    return replace(attempt, probing=False, probe_at=now + attempt.pause, pause=pause), ()


def _wait_for_answer(attempt: Attempt, event: Tick, now: float) -> Step:
    if attempt.deadline_at is not None and now >= attempt.deadline_at:
        attempt = replace(attempt, overdue=True, deadline_at=None)
        return (attempt, ()) if attempt.probing else _ask_last(attempt)
    return _ask_if_due(attempt, now)


def _ask_last(attempt: Attempt) -> Step:
    """Time alone ends nothing: an agent that was stopped, or its machine, wakes to a deadline long over, beside an
    engine that may have been ready for as long."""
    return replace(attempt, probing=True, last=True, probe_at=None), (Probe(epoch=attempt.epoch),)


def _ask_if_due(attempt: Attempt, now: float) -> Step:
    if attempt.probe_at is None or attempt.probing or now < attempt.probe_at:
        return attempt, ()
    return replace(attempt, probing=True, probe_at=None), (Probe(epoch=attempt.epoch),)


# --- ready: what works proves itself ---------------------------------------------------------------------------------


def _looked(attempt: Attempt, event: Looked, now: float) -> Step:
    if event.refused:
        return _refused(attempt, now)
    attempt = replace(attempt, refusals=0)
    if event.figures is None:
        return replace(attempt, blind=True), ()
    moved = attempt.figures is not None and event.figures != attempt.figures
    attempt = replace(attempt, figures=event.figures, blind=False)
    return _alive(attempt, now) if moved else (attempt, ())


def _alive(attempt: Attempt, now: float) -> Step:
    """A busy engine is asked nothing, however slow it answers: its figures move."""
    doubted = attempt.misses > 0
    due = now + attempt.limits.quiet if attempt.limits.answers else None
    attempt = replace(attempt, sign_at=now, misses=0, refusals=0, phase="", probe_at=due)
    return attempt, (Report(epoch=attempt.epoch, attempt=attempt),) if doubted else ()


def _answered(attempt: Attempt, event: Answered, now: float) -> Step:
    return _alive(replace(attempt, probing=False), now)


def _missed(attempt: Attempt, event: Missed, now: float) -> Step:
    """Given up here is only what is seen to stand still. An engine that shows no figures may be busy with answers that
    a router alone sees: of it the control plane decides, which is told since when it owes one.
    """
    if not attempt.probing:
        return attempt, ()
    if attempt.probe_at is not None:  # a figure moved since it was asked
        return replace(attempt, probing=False), ()
    attempt = replace(attempt, probing=False, misses=attempt.misses + 1, probe_at=now + attempt.limits.look)
    if event.refused:
        attempt, ended = _refused(attempt, now)
        if ended:
            return attempt, ended
    else:
        attempt = replace(attempt, refusals=0)
    stands = not attempt.blind and now - attempt.sign_at >= attempt.limits.hung
    if stands and attempt.misses >= DEAD:
        explain = Explain(epoch=attempt.epoch, why=Why.HUNG, seconds=now - attempt.sign_at)
        return ending.end(attempt, now, explain=explain, grace=min(attempt.limits.grace, HUNG_GRACE))
    if attempt.misses == SUSPECT:
        attempt = replace(attempt, phase=NOT_ANSWERING)
    told = attempt.misses <= SUSPECT
    return attempt, (Report(epoch=attempt.epoch, attempt=attempt),) if told else ()


def _refused(attempt: Attempt, now: float) -> Step:
    """An engine that was told to end may close its port and wait for ever: the kernel says so, no silence must do."""
    attempt = replace(attempt, refusals=attempt.refusals + 1, blind=True)
    if attempt.refusals >= CLOSED:
        explain = Explain(epoch=attempt.epoch, why=Why.CLOSED, seconds=now - attempt.sign_at)
        return ending.end(attempt, now, explain=explain, grace=min(attempt.limits.grace, HUNG_GRACE))
    if not attempt.probing:
        due = now + min(REFUSED_PAUSE, attempt.limits.look)
        attempt = replace(attempt, probe_at=due if attempt.probe_at is None else min(due, attempt.probe_at))
    return attempt, ()


def _ask(attempt: Attempt, event: Tick, now: float) -> Step:
    return _ask_if_due(attempt, now)


# --- draining --------------------------------------------------------------------------------------------------------


def _drain(attempt: Attempt, event: DrainAsked, now: float) -> Step:
    attempt = replace(attempt, deadline_at=now + event.seconds, probe_at=None, misses=0, phase="", idle=0)
    return ending.move(attempt, S.DRAINING, detail=event.reason)


def _drain_unready(attempt: Attempt, event: DrainAsked, now: float) -> Step:
    """It serves nobody yet."""
    return ending.stop(attempt, StopAsked(epoch=event.epoch, grace=attempt.limits.grace, reason=event.reason), now)


def _drain_looked(attempt: Attempt, event: Looked, now: float) -> Step:
    attempt = replace(attempt, idle=attempt.idle + 1 if event.requests == 0 or event.refused else 0)
    return _drained(attempt, now) if attempt.idle >= IDLE_LOOKS else (attempt, ())


def _drain_over(attempt: Attempt, event: Tick, now: float) -> Step:
    over = attempt.deadline_at is not None and now >= attempt.deadline_at
    return _drained(attempt, now) if over else (attempt, ())


def _drained(attempt: Attempt, now: float) -> Step:
    reason = attempt.detail or "drained"
    return ending.stop(attempt, StopAsked(epoch=attempt.epoch, grace=attempt.limits.grace, reason=reason), now)


def _undrain(attempt: Attempt, event: DrainCancelled, now: float) -> Step:
    attempt = replace(attempt, deadline_at=None, sign_at=now, probe_at=now + attempt.limits.quiet, probing=False)
    return ending.move(attempt, S.READY)


TABLE: Mapping[tuple[ShardState, type[Event]], Row] = {
    (S.VALIDATING, Progressed): _fetched_on,
    (S.VALIDATING, Checked): _checked,
    (S.VALIDATING, StopAsked): _stop_unstarted,
    (S.VALIDATING, DrainAsked): _stop_unstarted,
    (S.LAUNCHING, Spawned): _spawned,
    (S.LAUNCHING, NotSpawned): _not_spawned,
    (S.LAUNCHING, StopAsked): _stop_spawning,
    (S.LAUNCHING, DrainAsked): _stop_spawning,
    (S.LOADING, Progressed): _progressed,
    (S.LOADING, Answered): _first_answer,
    (S.LOADING, Missed): _not_yet,
    (S.LOADING, Tick): _wait_for_answer,
    (S.LOADING, Exited): ending.exited,
    (S.LOADING, StopAsked): ending.stop,
    (S.LOADING, DrainAsked): _drain_unready,
    (S.READY, Looked): _looked,
    (S.READY, Answered): _answered,
    (S.READY, Missed): _missed,
    (S.READY, Tick): _ask,
    (S.READY, Exited): ending.exited,
    (S.READY, StopAsked): ending.stop,
    (S.READY, DrainAsked): _drain,
    (S.DRAINING, Looked): _drain_looked,
    (S.DRAINING, Tick): _drain_over,
    (S.DRAINING, Exited): ending.exited,
    (S.DRAINING, DrainCancelled): _undrain,
    (S.DRAINING, StopAsked): ending.stop,
    (S.STOPPING, Spawned): ending.spawned_late,
    (S.STOPPING, NotSpawned): ending.not_spawned_late,
    (S.STOPPING, Tick): ending.press,
    (S.STOPPING, Remaining): ending.remaining,
    (S.STOPPING, Emptied): ending.emptied,
    (S.STOPPING, Explained): ending.explained,
    (S.STOPPING, StopAsked): ending.stop_failing,
    (S.STOP_STUCK, Tick): ending.press,
    (S.STOP_STUCK, Remaining): ending.remaining,
    (S.STOP_STUCK, Emptied): ending.emptied,
    (S.STOP_STUCK, Explained): ending.explained,
    (S.STOP_STUCK, StopAsked): ending.stop_failing,
}
