"""Which endpoint gets a request: load, weight, ejection, cached beginnings, sessions."""

from collections import Counter
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain import affinity
from routing.domain.ejection import ERRORS_IN_A_ROW, LONGEST_SECONDS, Health
from routing.domain.select import Load, pick, routable
from routing.table import Endpoint


def ends(*weights: int) -> list[Endpoint]:
    return [Endpoint(id=f"e{i}", address="a", port=1, weight=weight) for i, weight in enumerate(weights)]


def loads(*outstanding: int) -> dict[str, Load]:
    return {f"e{i}": Load(outstanding=count) for i, count in enumerate(outstanding)}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8))
def test_the_least_burdened_for_its_weight_is_chosen(drawn: list[tuple[int, int, int]]) -> None:
    fit = ends(*(weight for weight, _, _ in drawn))
    known = {f"e{i}": Load(outstanding=mine, elsewhere=other) for i, (_, mine, other) in enumerate(drawn)}
    best = pick(fit, known)
    assert best is not None
    burden = {e.id: (known[e.id].total + 1) / e.weight for e in fit}
    assert burden[best.id] == min(burden.values())


def test_ties_go_round() -> None:
    fit, known, turns = ends(1, 1, 1), loads(0, 0, 0), Counter[str]()
    for turn in range(9):
        best = pick(fit, known)
        assert best is not None
        known[best.id].turn = turn + 1
        turns[best.id] += 1
    assert set(turns.values()) == {3}


def test_weights_share_the_requests() -> None:
    fit, known = ends(3, 1), loads(0, 0)
    for _ in range(40):
        best = pick(fit, known)
        assert best is not None
        known[best.id].outstanding += 1
    assert [known["e0"].outstanding, known["e1"].outstanding] == [30, 10]


def test_two_drawn_ones_are_nearly_as_level_as_all() -> None:
    fit, known, chance = ends(*[1] * 10), loads(*[0] * 10), Random(1)
    for _ in range(1000):
        best = pick(fit, known, draws=(chance.random(), chance.random()))
        assert best is not None
        known[best.id].outstanding += 1
    assert max(load.outstanding for load in known.values()) <= 105


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_two_different_ones_are_drawn(first: float, second: float) -> None:
    fit, known = ends(1, 1, 1), loads(9, 0, 9)
    chosen = pick(fit, known, draws=(first, second))
    assert chosen is not None
    known[chosen.id].outstanding = 99
    again = pick(fit, known, draws=(first, second))
    assert again is not None
    assert again.id != chosen.id


@pytest.mark.parametrize("panic", [False, True])
def test_an_ejected_one_gets_nothing_unless_all_are(panic: bool) -> None:
    fit, known = ends(1, 1), loads(0, 0)
    known["e0"].health.failed("gone", now=0)
    if panic:
        known["e1"].health.failed("gone", now=0)
    chosen, panicking = routable(fit, known)
    assert [e.id for e in chosen] == (["e0", "e1"] if panic else ["e1"])
    assert panicking is panic


def test_draining_weightless_and_excluded_ones_are_never_chosen_even_in_panic() -> None:
    fit = [*ends(1, 0, 1), Endpoint(id="e3", address="a", port=1, draining=True)]
    known = loads(0, 0, 0, 0)
    for load in known.values():
        load.health.failed("gone", now=0)
    assert [e.id for e in routable(fit, known, {"e0"})[0]] == ["e2"]


# -- ejection ---------------------------------------------------------------------------------------------------------


def test_the_pause_before_a_probe_doubles_up_to_its_bound_and_an_answer_resets_it() -> None:
    health, pauses = Health(), []
    for _ in range(8):
        health.failed("refused", now=100)
        pauses.append(health.probe_at - 100)
        health.probed()
        assert not health.reason
    assert pauses == [1, 2, 4, 8, 16, LONGEST_SECONDS, LONGEST_SECONDS, LONGEST_SECONDS]
    health.answered(200, now=100)
    health.failed("refused", now=100)
    assert health.probe_at == 101


def test_server_errors_eject_only_in_a_row() -> None:
    health = Health()
    for _ in range(3 * ERRORS_IN_A_ROW):
        assert not health.answered(500, now=0)
        assert not health.answered(404, now=0)
    assert [health.answered(503, now=0) for _ in range(ERRORS_IN_A_ROW)] == [False] * (ERRORS_IN_A_ROW - 1) + [True]
    assert "503" in health.reason


# -- cached beginnings ------------------------------------------------------------------------------------------------


def body(text: str, model: str = "m") -> bytes:
    return b'{"model":"%b","messages":[{"role":"user","content":"%b"}]}' % (model.encode(), text.encode())


def test_the_longest_known_beginning_wins() -> None:
    memory = [0] * 1024
    short, long = "s" * 600, "s" * 600 + "a" * 2000
    affinity.remember(memory, affinity.beginnings("m", body(short)), 1)
    affinity.remember(memory, affinity.beginnings("m", body(long)), 2)
    assert affinity.remembered(memory, affinity.beginnings("m", body(long + "more"))) == 2
    assert affinity.remembered(memory, affinity.beginnings("m", body("t" * 600))) == 0
    assert affinity.remembered(memory, affinity.beginnings("other", body(long))) == 0


def test_a_short_prompt_has_no_beginning_and_a_body_without_prompt_neither() -> None:
    assert affinity.beginnings("m", body("hi")) == []
    assert affinity.beginnings("m", b'{"model": "m"}' + b" " * 1000) == []


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_what_comes_before_the_prompt_does_not_matter(text: bytes, cut: int) -> None:
    prompt = b'"messages":' + text
    assert affinity.beginnings("m", b"x" * cut + prompt) == affinity.beginnings("m", bytearray(prompt))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 50)), min_size=2, max_size=8), st.data())
def test_a_preferred_one_is_taken_when_it_is_no_busier_than_the_average(
    drawn: list[tuple[int, int]], data: st.DataObject
) -> None:
    fit, known = ends(*(weight for weight, _ in drawn)), loads(*(count for _, count in drawn))
    liked = data.draw(st.sampled_from(fit))
    chosen, plain = pick(fit, known, preferred=liked.id), pick(fit, known)
    average = Fraction(sum(count for _, count in drawn), sum(weight for weight, _ in drawn))
    fits = Fraction(known[liked.id].total, liked.weight) <= average
    assert chosen is (liked if fits else plain)


def test_a_preferred_one_is_left_when_it_is_busier() -> None:
    fit = ends(1, 1)
    for busy in range(60):
        chosen = pick(fit, loads(busy, 10), preferred="e0")
        assert chosen is not None
        assert chosen.id == ("e0" if busy <= 10 else "e1"), busy


def test_a_session_keeps_its_endpoint_when_others_come_and_go() -> None:
    fit = ends(*[1] * 8)
    for number in range(50):
        value = b"session-%d" % number
        home = affinity.by_header(value, fit)
        assert home is not None
        assert affinity.by_header(value, [e for e in fit if e is home or e.id in ("e1", "e2")]) is home
    homes = Counter(affinity.by_header(b"session-%d" % n, fit).id for n in range(800))  # type: ignore[union-attr]
    assert len(homes) == 8
    assert min(homes.values()) > 40
