"""The rows of an attempt's end: TERM, after its grace KILL, until nothing of it is left. Pure."""

from dataclasses import replace

from agent_client.machine.effects import (
    CheckEmpty,
    Effect,
    Effects,
    Explain,
    Forget,
    Report,
    SendKill,
    SendTerm,
    Spawn,
    Watch,
)
from agent_client.machine.events import (
    Emptied,
    Exited,
    Explained,
    NotSpawned,
    Remaining,
    Spawned,
    StopAsked,
    Tick,
)
from agent_client.machine.state import Attempt, Failure, Why
from agent_client.protocol.states import ShardState

S = ShardState
MOST_RESPAWNS = 2  # for a port that was taken between its choice and its use
Step = tuple[Attempt, Effects]


def move(attempt: Attempt, state: ShardState, *effects: Effect, told: Failure | None = None, detail: str = "") -> Step:
    told = told or Failure(code="", detail=detail)
    moved = replace(attempt, state=state, code=told.code, detail=told.detail, hint=told.hint)
    return moved, (Report(epoch=moved.epoch, attempt=moved), *effects)


def stop(attempt: Attempt, event: StopAsked, now: float) -> Step:
    return end(attempt, now, explain=None, grace=event.grace, reason=event.reason)


def exited(attempt: Attempt, event: Exited, now: float) -> Step:
    """Nobody asked it to, whatever its exit code. Children that outlived it are ended before anything else starts."""
    explain = Explain(epoch=attempt.epoch, why=Why.EXITED, seconds=now - attempt.started_at)
    ended, effects = end(attempt, now, explain=explain, grace=0.0)
    if attempt.state is S.LOADING and attempt.respawns < MOST_RESPAWNS:
        return replace(ended, undecided=True), tuple(effect for effect in effects if not isinstance(effect, Report))
    return ended, effects


def end(attempt: Attempt, now: float, *, explain: Explain | None, grace: float, reason: str = "") -> Step:
    """TERM, after its grace KILL, until nothing is left."""
    kill_at_once = grace <= 0
    limits = attempt.limits
    attempt = replace(attempt, deadline_at=now + (limits.stuck if kill_at_once else grace), probe_at=None)
    attempt = replace(attempt, killed=kill_at_once, failing=explain is not None, phase="", progress=None, misses=0)
    attempt = replace(attempt, reason=reason)
    effects: list[Effect] = [explain] if explain else []
    if kill_at_once:
        effects.append(SendKill(epoch=attempt.epoch))
    elif limits.terminates:
        effects.append(SendTerm(epoch=attempt.epoch))
    return move(attempt, S.STOPPING, *effects, CheckEmpty(epoch=attempt.epoch), detail=reason)


def spawned_late(attempt: Attempt, event: Spawned, now: float) -> Step:
    if not attempt.spawning:
        return attempt, ()
    attempt = replace(attempt, spawning=False, started_at=now)
    ending, effects = end(attempt, now, explain=None, grace=attempt.limits.grace, reason=attempt.reason)
    return ending, (Watch(epoch=attempt.epoch), *effects)


def not_spawned_late(attempt: Attempt, event: NotSpawned, now: float) -> Step:
    return move(replace(attempt, spawning=False), S.STOPPED, Forget(epoch=attempt.epoch), detail=attempt.reason)


def press(attempt: Attempt, event: Tick, now: float) -> Step:
    if attempt.empty or attempt.deadline_at is None or now < attempt.deadline_at:
        return attempt, ()
    kill = SendKill(epoch=attempt.epoch)
    attempt = replace(attempt, deadline_at=now + attempt.limits.stuck)
    if not attempt.killed:
        return replace(attempt, killed=True), (kill,)
    if attempt.state is S.STOP_STUCK:
        return attempt, (kill,)
    attempt = replace(attempt, undecided=False)
    stuck = Failure(code="stop_stuck", detail=attempt.left, hint="they may hang in the driver")
    return move(attempt, S.STOP_STUCK, kill, told=stuck)


def remaining(attempt: Attempt, event: Remaining, now: float) -> Step:
    if attempt.left == event.what:
        return attempt, ()
    attempt = replace(attempt, left=event.what)
    if attempt.state is not S.STOP_STUCK:
        return attempt, ()
    attempt = replace(attempt, detail=event.what)
    return attempt, (Report(epoch=attempt.epoch, attempt=attempt),)


def emptied(attempt: Attempt, event: Emptied, now: float) -> Step:
    return finish(replace(attempt, empty=True))


def explained(attempt: Attempt, event: Explained, now: float) -> Step:
    attempt = replace(attempt, failure=event.failure)
    if not attempt.undecided or event.again:
        return finish(attempt)
    attempt = replace(attempt, undecided=False)
    finished, effects = finish(attempt)
    return finished, (Report(epoch=attempt.epoch, attempt=attempt), *effects)


def stop_failing(attempt: Attempt, event: StopAsked, now: float) -> Step:
    """It ends already; now because it was asked to."""
    return finish(replace(attempt, failing=False, undecided=False, reason=event.reason or attempt.reason))


def finish(attempt: Attempt) -> Step:
    if not attempt.empty or (attempt.failing and attempt.failure is None):
        return attempt, ()
    if attempt.undecided:
        again = Attempt(epoch=attempt.epoch, limits=attempt.limits, state=S.LAUNCHING, spawning=True)
        return replace(again, respawns=attempt.respawns + 1), (Spawn(epoch=attempt.epoch),)
    forget = Forget(epoch=attempt.epoch)
    attempt = replace(attempt, deadline_at=None)
    if attempt.failing and attempt.failure is not None:
        return move(attempt, S.FAILED, forget, told=attempt.failure)
    return move(attempt, S.STOPPED, forget, detail=attempt.reason)
