"""The table's times, one event after another."""

from dataclasses import replace
from typing import Any

from agent_client.machine import Attempt, Failure, Limits, Shard, effects, events, step, wake_at
from agent_client.protocol.states import ShardState

E: Any = {"epoch": 1}
S = ShardState


class Life:
    def __init__(self, **limits: Any) -> None:
        self.shard, self.now, self.told = Shard(), 0.0, list[effects.Effect]()
        self.on(events.Ordered(epoch=1, limits=Limits(**limits)))

    def on(self, event: events.Event, at: float | None = None) -> list[str]:
        """The names of the effects."""
        self.now = self.now if at is None else at
        self.shard, found = step(self.shard, event, self.now)
        self.told += found
        return [type(effect).__name__ for effect in found if not isinstance(effect, effects.Report)]

    def until_ready(self) -> "Life":
        for event in (events.Checked(**E), events.Spawned(**E), events.Answered(**E)):
            self.on(event)
        assert self.attempt.state in (S.READY, S.LOADING)
        return self

    @property
    def attempt(self) -> Attempt:
        assert self.shard.attempt is not None
        return self.shard.attempt


def test_progress_moves_the_deadline_and_standing_still_does_not() -> None:
    """F25, failures 36."""
    life = Life(start=60)
    life.on(events.Checked(**E))
    life.on(events.Spawned(**E))
    for n in range(10):
        life.on(events.Progressed(**E, phase="weights", place=1, share=n / 10), at=n * 50.0)
    life.on(events.Progressed(**E, phase="weights", place=1, share=0.3), at=500.0)  # again from the beginning
    assert life.attempt.deadline_at == 450.0 + 60
    assert life.on(events.Tick(**E), at=510.0) == []  # the question under way was asked before
    assert life.on(events.Missed(**E), at=511.0) == ["Probe"]
    assert wake_at(life.shard) is None
    assert life.on(events.Missed(**E), at=512.0) == ["Explain", "SendTerm", "CheckEmpty"]
    life.on(events.Explained(**E, failure=Failure(code="start_timeout", detail="late")))
    assert life.attempt.state is S.STOPPING
    assert life.on(events.Emptied(**E)) == ["Forget"]
    assert (life.attempt.state, life.attempt.code) == (S.FAILED, "start_timeout")


def test_an_agent_that_slept_over_the_deadline_asks_before_it_ends_anything() -> None:
    """Its process was stopped, or its machine: the engine was ready long ago."""
    life = Life(start=60)
    for event in (events.Checked(**E), events.Spawned(**E), events.Missed(**E)):
        life.on(event)
    assert life.on(events.Tick(**E), at=500.0) == ["Probe"]
    life.on(events.Answered(**E), at=500.1)
    assert life.attempt.state is S.READY
    assert not life.attempt.overdue


def test_progress_after_the_deadline_is_time_again() -> None:
    life = Life(start=60)
    for event in (events.Checked(**E), events.Spawned(**E)):
        life.on(event)
    life.on(events.Tick(**E), at=61.0)
    life.on(events.Progressed(**E, phase="weights", place=1, share=0.5), at=61.5)
    life.on(events.Missed(**E), at=62.0)
    assert life.attempt.state is S.LOADING
    assert life.attempt.deadline_at == 61.5 + 60


def test_how_far_a_fetch_is_stays_told_until_it_is_done() -> None:
    """A whole report in between tells the same: else each would look like progress to who judges by it."""
    life = Life()
    for share in (0.5, 0.9, 0.1):  # the files have come, and are checked
        life.on(events.Progressed(**E, phase="fetching", place=0, share=share))
        assert (life.attempt.phase, life.attempt.progress) == ("fetching", share)
        assert isinstance(life.told[-1], effects.Report)
    told = len(life.told)
    life.on(events.Progressed(**E, phase="fetching", place=0, share=0.1))
    assert len(life.told) == told
    life.on(events.Checked(**E))
    assert (life.attempt.state, life.attempt.phase, life.attempt.progress) == (S.LAUNCHING, "", None)


def silent(life: Life, seconds: float) -> tuple[float | None, float | None]:
    """When it was unrouted and given up, of one that answers nothing any more."""
    unrouted = hung = None
    while hung is None and life.now < seconds:
        life.now = wake_at(life.shard) or life.now
        if "Probe" in life.on(events.Tick(**E)):
            found = life.on(events.Missed(**E), at=life.now + 10)  # its time is up
            unrouted = unrouted or (life.now if life.attempt.shown is S.LOADING else None)
            hung = life.now if "Explain" in found else None
    return unrouted, hung


def test_a_silent_engine_is_unrouted_within_a_minute_and_given_up_later() -> None:
    """F30, failures 35."""
    life = Life().until_ready()
    life.on(events.Looked(**E, requests=3, figures=(1.0,)))
    unrouted, hung = silent(life, 1000)
    assert unrouted is not None
    assert hung is not None
    assert unrouted <= 60
    assert 90 <= hung <= 120
    assert (wake_at(life.shard) or 0) - hung <= 5  # then KILL: it has no requests that it could end


def test_one_whose_figures_are_not_seen_is_unrouted_and_told_of_and_never_given_up_here() -> None:
    life = Life().until_ready()
    life.on(events.Looked(**E, requests=3, figures=(1.0,)))
    life.on(events.Looked(**E))  # its pages do not answer any more: what it does nobody here can see
    unrouted, hung = silent(life, 3000)
    assert unrouted is not None
    assert unrouted <= 60
    assert (hung, life.attempt.state, life.attempt.stalled_at) == (None, S.READY, 0.0)
    life.on(events.Answered(**E))
    assert (life.attempt.shown, life.attempt.stalled_at) == (S.READY, None)


def test_the_first_unanswered_question_and_the_end_of_the_silence_are_told() -> None:
    life = Life().until_ready()
    told = len(life.told)
    life.on(events.Tick(**E), at=wake_at(life.shard))
    life.on(events.Missed(**E), at=40.0)
    life.on(events.Tick(**E), at=wake_at(life.shard))
    life.on(events.Answered(**E), at=50.0)
    reports = [effect.attempt for effect in life.told[told:] if isinstance(effect, effects.Report)]
    assert [(each.shown, each.stalled_at) for each in reports] == [(S.READY, 0.0), (S.READY, None)]


def test_a_moving_figure_takes_back_every_doubt() -> None:
    life = Life().until_ready()
    life.on(events.Looked(**E, requests=1, figures=(1.0,)))
    for _ in range(2):
        life.on(events.Tick(**E), at=wake_at(life.shard))
        life.on(events.Missed(**E))
    assert life.attempt.shown is S.LOADING
    life.on(events.Looked(**E, requests=1, figures=(2.0,)))
    assert life.attempt.shown is S.READY
    assert (wake_at(life.shard) or 0) - life.now == 30


def test_a_health_page_that_takes_thirty_seconds_restarts_nothing_while_tokens_flow() -> None:
    """F31: a burst; every question times out, and the figures move all the while."""
    life = Life().until_ready()
    life.on(events.Looked(**E, requests=50, figures=(0.0,)))
    life.on(events.Tick(**E), at=wake_at(life.shard))  # it was idle until now, so it is being asked
    assert life.attempt.probing
    for second in range(1, 600):
        life.on(events.Tick(**E), at=life.now + 1)
        if second % 5 == 0:
            life.on(events.Looked(**E, requests=50, figures=(float(second),)))
        if second % 30 == 0:
            life.on(events.Missed(**E))
        assert life.attempt.shown is S.READY


def test_a_port_that_refuses_three_times_in_a_row_ends_a_ready_engine() -> None:
    life = Life().until_ready()
    life.on(events.Looked(**E, refused=True), at=5.0)
    assert wake_at(life.shard) == 7.0  # it is asked at once, though it was quiet for a moment only
    assert life.on(events.Tick(**E), at=7.0) == ["Probe"]
    life.on(events.Missed(**E, refused=True))
    assert life.attempt.state is S.READY
    assert life.on(events.Looked(**E, refused=True), at=9.0) == ["Explain", "SendTerm", "CheckEmpty"]
    assert life.told[-3].why == "closed"  # type: ignore[attr-defined]
    assert (wake_at(life.shard) or 0) - 9.0 <= 5.0


def test_one_that_accepts_in_between_is_not_ended_for_its_port() -> None:
    """It is busy, or was started anew by itself."""
    life = Life().until_ready()
    for accepted in (
        events.Looked(**E, figures=(1.0,)),
        events.Looked(**E),  # the page gave no figures, but somebody took the connection
        events.Answered(**E),
        events.Missed(**E),
    ):
        for _ in range(2):
            life.on(events.Looked(**E, refused=True), at=life.now + 1)
        if not isinstance(accepted, events.Looked):
            life.on(events.Tick(**E), at=wake_at(life.shard))
        life.on(accepted)
        assert (life.attempt.state, life.attempt.refusals) == (S.READY, 0)


def test_an_engine_that_loads_has_no_port_yet_and_one_that_drains_is_done_without_it() -> None:
    life = Life()
    life.on(events.Checked(**E))
    life.on(events.Spawned(**E))
    for _ in range(10):
        life.on(events.Missed(**E, refused=True))
        life.on(events.Tick(**E), at=wake_at(life.shard))
    assert life.attempt.state is S.LOADING
    life.on(events.Answered(**E))
    life.on(events.DrainAsked(**E, seconds=600))
    for _ in range(2):
        assert life.on(events.Looked(**E, refused=True)) == []
    assert life.on(events.Looked(**E, refused=True)) == ["SendTerm", "CheckEmpty"]


def test_a_drain_waits_for_three_empty_looks_or_its_deadline() -> None:
    life = Life().until_ready()
    life.on(events.DrainAsked(**E, seconds=600))
    for requests in (2, 0, 0, None, 0, 0):
        assert life.on(events.Looked(**E, requests=requests)) == []
    assert life.on(events.Looked(**E, requests=0)) == ["SendTerm", "CheckEmpty"]
    life = Life().until_ready()
    life.on(events.DrainAsked(**E, seconds=600))
    assert life.on(events.Tick(**E), at=599.0) == []
    assert life.on(events.Tick(**E), at=600.0) == ["SendTerm", "CheckEmpty"]


def test_kill_follows_term_after_the_grace_and_stuck_follows_kill() -> None:
    life = Life(grace=30, stuck=5).until_ready()
    assert life.on(events.StopAsked(**E, grace=30), at=100.0) == ["SendTerm", "CheckEmpty"]
    life.on(events.Remaining(**E, what="cannot end m/1: processes 7 do not die"))
    assert life.on(events.Tick(**E), at=129.0) == []
    assert life.on(events.Tick(**E), at=130.0) == ["SendKill"]
    assert life.on(events.Tick(**E), at=135.0) == ["SendKill"]
    assert (life.attempt.state, life.attempt.code) == (S.STOP_STUCK, "stop_stuck")
    assert "processes 7" in life.attempt.detail
    assert life.on(events.Emptied(**E)) == ["Forget"]
    assert life.attempt.state is S.STOPPED


def test_a_rank_that_ignores_term_gets_none() -> None:
    life = Life(terminates=False, answers=False).until_ready()
    assert life.on(events.StopAsked(**E, grace=30), at=1.0) == ["CheckEmpty"]
    assert life.on(events.Tick(**E), at=31.0) == ["SendKill"]


def test_exit_0_is_a_failure_unless_it_was_asked_for() -> None:
    life = Life().until_ready()
    assert life.on(events.Exited(**E)) == ["Explain", "SendKill", "CheckEmpty"]
    life.on(events.Emptied(**E))
    life.on(events.Explained(**E, failure=Failure(code="exited", detail="it exited with code 0")))
    assert life.attempt.state is S.FAILED


def test_what_runs_stays_until_nothing_stands_against_its_successor() -> None:
    life = Life().until_ready()
    order = events.Ordered(epoch=2, limits=Limits())
    assert life.on(order) == ["Foresee"]
    refused = Failure(code="flag_unknown", detail="cannot use --swap-space")
    assert life.on(events.Foreseen(epoch=2, refused=refused)) == []
    last = life.told[-1]
    assert isinstance(last, effects.Report)
    assert (last.epoch, last.attempt.state, last.attempt.code) == (2, S.FAILED, "flag_unknown")
    assert (life.attempt.epoch, life.attempt.state, life.shard.following) == (1, S.READY, None)
    assert life.on(replace(order, epoch=3)) == ["Foresee"]
    assert life.on(events.Foreseen(epoch=3)) == ["SendTerm", "CheckEmpty"]
    assert life.on(events.Emptied(**E)) == ["Forget", "Check"]
    assert (life.attempt.epoch, life.attempt.state) == (3, S.VALIDATING)
    assert life.on(events.Foreseen(epoch=3)) == []  # a late word of it is not the check that now runs
    assert life.attempt.state is S.VALIDATING


def test_what_waits_to_be_foreseen_begins_at_once_when_the_one_before_dies() -> None:
    life = Life().until_ready()
    life.on(events.Ordered(epoch=2, limits=Limits()))
    life.on(events.Exited(**E))
    life.on(events.Explained(**E, failure=Failure(code="exited", detail="it exited with code 0")))
    assert life.on(events.Emptied(**E)) == ["Forget", "Check"]
    assert (life.attempt.epoch, life.attempt.state) == (2, S.VALIDATING)
