"""Hysteresis of problems: what forbids a card counts at once, what only warns when it stays, and both leave slowly."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent_client.hardware.steady import Memory, settle

BAD = {"code": "lost", "severity": "unplaceable", "text": "lost", "hint": ""}
ODD = {"code": "hw_slowdown", "severity": "warning", "text": "slow", "hint": ""}


def card(*problems: dict[str, str], uuid: str | None = "GPU-a", **more: Any) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "bus": "0000:01:00.0",
        "mig_mode": None,
        "problems": list(problems),
        "placeable": True,
        **more,
    }


def looks(*each: list[dict[str, str]]) -> list[tuple[list[str], bool]]:
    """What is shown after each look, the first of them with an empty memory."""
    memory: Memory | None = {}
    out = []
    for problems in each:
        memory, (gpu,) = settle(memory, [card(*problems)])
        out.append(([problem["code"] for problem in gpu["problems"]], gpu["placeable"]))
    return out


def test_a_warning_counts_when_it_stays() -> None:
    assert looks([ODD], [], [ODD], [ODD]) == [([], True), ([], True), ([], True), (["hw_slowdown"], True)]


def test_what_forbids_counts_at_once_and_goes_slowly() -> None:
    assert looks([BAD], [], []) == [(["lost"], False), (["lost"], False), ([], True)]
    assert looks([BAD], [], [BAD], [], []) == [(["lost"], False)] * 4 + [([], True)]


def test_at_the_first_look_everything_counts() -> None:
    _, (gpu,) = settle(None, [card(ODD, BAD)])
    assert [problem["code"] for problem in gpu["problems"]] == ["hw_slowdown", "lost"]
    assert gpu["placeable"] is False


def test_a_parent_of_slices_and_a_card_without_name_stay_unplaceable() -> None:
    _, gpus = settle(None, [card(mig_mode="enabled"), card(uuid=None)])
    assert [gpu["placeable"] for gpu in gpus] == [False, False]


def test_cards_do_not_share_a_memory() -> None:
    memory, _ = settle({}, [card(ODD), card(uuid="GPU-b")])
    _, gpus = settle(memory, [card(), card(ODD, uuid="GPU-b")])
    assert [gpu["problems"] for gpu in gpus] == [[], []]


@given(st.lists(st.lists(st.sampled_from([BAD, ODD]), max_size=2, unique_by=lambda p: p["code"]), max_size=12))
def test_nothing_is_invented_and_nothing_that_forbids_is_hidden(history: list[list[dict[str, str]]]) -> None:
    for index, (shown, placeable) in enumerate(looks(*history)):
        recent = {problem["code"] for problems in history[max(0, index - 1) : index + 1] for problem in problems}
        assert set(shown) <= recent
        assert ("lost" in shown) or BAD not in history[index]
        assert placeable is ("lost" not in shown)
