"""Who is unreachable or lost, and when nothing is judged."""

from dataclasses import replace

from fleet.domain.liveness import Limits, NodeSilence, Verdict, judge
from fleet.domain.states import NodeStatus

LIMITS = Limits(unreachable_after=30, lost_after=300, start_grace=180, brake_share=0.4, brake_nodes=3, loss_spacing=10)


def nodes(silent: int, of: int, seconds: float = 400, status: NodeStatus = NodeStatus.UNREACHABLE) -> list[NodeSilence]:
    quiet = [NodeSilence(pk=i, name=f"n{i}", status=status, silent_seconds=seconds) for i in range(silent)]
    well = [NodeSilence(pk=i, name=f"n{i}", status=NodeStatus.READY, silent_seconds=1) for i in range(silent, of)]
    return quiet + well


def verdict(given: list[NodeSilence], **kwargs: float | None) -> Verdict:
    arguments: dict[str, float | None] = {"listening_for": 1000.0, "since_last_loss": None, **kwargs}
    return judge(given, limits=LIMITS, **arguments)  # type: ignore[arg-type]


def test_a_silent_node_is_unreachable_first() -> None:
    found = verdict(nodes(1, 20, seconds=400, status=NodeStatus.READY))
    assert [n.name for n in found.unreachable] == ["n0"]
    assert found.lost == ()


def test_one_of_twenty_is_lost_after_a_while() -> None:
    assert [n.name for n in verdict(nodes(1, 20)).lost] == ["n0"]
    assert verdict(nodes(1, 20, seconds=299)).lost == ()


def test_losses_come_one_after_another() -> None:
    assert len(verdict(nodes(2, 20)).lost) == 1
    assert verdict(nodes(2, 20), since_last_loss=3.0).lost == ()
    assert len(verdict(nodes(2, 20), since_last_loss=11.0).lost) == 1


def test_most_of_the_fleet_silent_holds_evictions() -> None:
    for of in (20, 30):
        found = verdict(nodes(20, of))
        assert found.lost == ()
        assert len(found.held) == 20


def test_the_hold_begins_with_the_silence_and_not_with_the_first_loss() -> None:
    assert len(verdict(nodes(20, 30, seconds=31)).held) == 20


def test_those_that_come_back_late_have_all_their_time_again() -> None:
    """They come back one after another: the last of them must not be lost for what all suffered."""
    assert verdict(nodes(1, 20, seconds=700), since_hold=0.0).lost == ()
    assert verdict(nodes(1, 20, seconds=700), since_hold=299.0).lost == ()
    assert verdict(nodes(1, 20, seconds=700), since_hold=301.0).lost != ()


def test_nothing_is_judged_while_nobody_listens_or_just_after_a_start() -> None:
    assert verdict(nodes(1, 20), listening_for=None).deaf
    assert verdict(nodes(1, 20), listening_for=179.0).deaf


def test_what_was_said_while_nobody_could_listen_is_no_silence() -> None:
    silent = nodes(1, 20, status=NodeStatus.READY)
    assert verdict(silent, listening_for=20.0).unreachable == ()
    no_grace = {"limits": replace(LIMITS, start_grace=0), "since_last_loss": None}
    assert judge(silent, listening_for=20.0, **no_grace) == Verdict()
    assert judge(silent, listening_for=40.0, **no_grace).unreachable != ()
    assert judge(nodes(1, 20), listening_for=299.0, **no_grace).lost == ()
    assert judge(nodes(1, 20), listening_for=301.0, **no_grace).lost != ()
