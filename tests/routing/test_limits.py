"""What a key may use, who waits for a model, how often is tried again, and which request is poison."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.domain.admission import Demand, FairQueue, may_start
from routing.domain.budget import BURST, RetryBudget
from routing.domain.limits import Limits, Minute, Slid, Used, exceeded, slid
from routing.domain.poison import SECONDS, Suspects
from tests.support.examples import examples

NOTHING = Slid(count=0, before=0, share=0.0)


def check(limits: Limits, *, asks: int = 5, **used: object) -> tuple[str, int] | None:
    figures = Used(**{"requests": NOTHING, "tokens": NOTHING, "at_once": 0, "tokens_in_month": 0} | used)  # type: ignore[arg-type]
    found = exceeded(limits, figures, tokens=asks, month_ends_in=1000)
    return (found.code, found.retry_after) if found else None


@pytest.mark.parametrize(
    ("limits", "used", "found"),
    [
        (Limits(), {"at_once": 10**6, "tokens_in_month": 10**12}, None),
        (Limits(concurrency=2), {"at_once": 1}, None),
        (Limits(concurrency=2), {"at_once": 2}, ("rate_limit_exceeded", 1)),
        (Limits(tokens_per_month=100), {"tokens_in_month": 99}, None),
        (Limits(tokens_per_month=100), {"tokens_in_month": 100}, ("insufficient_quota", 1000)),
        (Limits(requests_per_minute=3), {"requests": Slid(count=2, before=0, share=0.5)}, None),
        (Limits(requests_per_minute=3), {"requests": Slid(count=0, before=4, share=0.5)}, None),
        (Limits(requests_per_minute=3), {"requests": Slid(count=0, before=5, share=0.5)}, ("rate_limit_exceeded", 6)),
        (Limits(requests_per_minute=3), {"requests": Slid(count=3, before=0, share=0.5)}, ("rate_limit_exceeded", 50)),
        (Limits(tokens_per_minute=100), {"tokens": Slid(count=95, before=0, share=0.0)}, None),
        (
            Limits(tokens_per_minute=100),
            {"tokens": Slid(count=96, before=0, share=0.0), "asks": 5},
            ("rate_limit_exceeded", 61),
        ),
        (Limits(tokens_per_minute=100), {"asks": 500}, None),
    ],
)
def test_limits(limits: Limits, used: dict[str, object], found: object) -> None:
    assert check(limits, **used) == found  # type: ignore[arg-type]


@settings(max_examples=examples(30))
@given(st.integers(1, 500), st.floats(0.5, 10), st.integers(1, 6), st.integers(0, 2**31))
def test_a_rate_holds_over_any_minute_and_is_used_in_full(limit: int, per_second: float, parts: int, seed: int) -> None:
    """Poisson arrivals at processes by chance: what is admitted keeps to the limit, and under demand reaches it."""
    chance, minutes, admitted, now = Random(seed), [Minute() for _ in range(parts)], list[float](), 1000.0
    while now < 1000 + 300 and len(admitted) < 3000:
        now += chance.expovariate(per_second)
        used = slid([(m.number, m.count, m.before) for m in minutes], now)
        if used.used + 1 <= limit:
            mine = chance.choice(minutes)
            mine.turn(int(now // 60))
            mine.count += 1
            admitted.append(now)
        elif limit > 20:
            assert used.wait_seconds(limit) <= 120
    spans = [
        sum(1 for at in admitted if start <= at < start + 60) for start in admitted[:: max(len(admitted) // 50, 1)]
    ]
    assert max(spans, default=0) <= 2 * limit  # a burst at a minute's end and one that slides: the method's bound
    demand = per_second * 60
    whole = [at for at in admitted if 1060 <= at < 1300]
    if len(admitted) < 3000:
        assert len(whole) / 4 <= limit * 1.05 + 1
        if demand > 1.5 * limit and limit > 50:
            assert len(whole) / 4 >= limit * 0.9


def test_waiting_as_long_as_told_helps() -> None:
    for count, before, share in [(0, 5, 0.5), (3, 0, 0.5), (3, 3, 0.9), (30, 0, 0.2), (2, 9, 0.1)]:
        told = Slid(count=count, before=before, share=share)
        if told.used + 1 <= 3:
            continue
        at = 600.0 + share * 60 + told.wait_seconds(3)
        assert slid([(10, count, before)], at).used + 1 <= 3 + 1e-9


# -- the queue --------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=80), st.integers(0, 6))
def test_the_queue_is_bounded_loses_nothing_and_keeps_each_keys_order(
    steps: list[tuple[str, bool]], places: int
) -> None:
    queue, inside, left = FairQueue[tuple[str, int]](), set[tuple[str, int]](), list[tuple[str, int]]()
    for number, (key, put) in enumerate(steps):
        if put:
            inside.add((key, number))
            out = queue.put(key, (key, number), places=places)
        elif (out := queue.pop()) is not None:
            assert out[1] == min(n for k, n in inside if k == out[0])
        if out is not None:
            inside.remove(out)
            left.append(out)
        assert len(queue) == len(inside) <= places
    while (out := queue.pop()) is not None:
        inside.remove(out)
    assert not inside


def test_a_quiet_key_gets_a_place_in_a_full_queue_and_the_next_turn() -> None:
    queue = FairQueue[str]()
    for number in range(4):
        assert queue.put("noisy", f"n{number}", places=4) is None
    assert queue.put("noisy", "n4", places=4) == "n4"
    assert queue.put("quiet", "q0", places=4) == "n3"
    assert [queue.pop() for _ in range(5)] == ["n0", "q0", "n1", "n2", None]


def test_one_that_leaves_the_queue_gives_up_its_place() -> None:
    queue = FairQueue[str]()
    queue.put("a", "x", places=1)
    assert queue.remove("a", "x")
    assert not queue.remove("a", "x")
    assert queue.put("b", "y", places=1) is None


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=6))
def test_free_places_never_stay_free_and_the_limit_is_kept(limit: int, drawn: list[tuple[int, int]]) -> None:
    all_of = Demand(running=sum(r for r, _ in drawn), waiting=sum(w for _, w in drawn))
    able = [may_start(limit, Demand(running=r, waiting=w), all_of) for r, w in drawn if w]
    if all_of.running >= limit:
        assert not any(able)
    elif able:
        assert any(able)


# -- second attempts --------------------------------------------------------------------------------------------------


def test_second_attempts_are_a_share_of_the_requests_after_a_burst() -> None:
    budget, granted = RetryBudget(), 0
    for _ in range(10_000):
        budget.deposit()
        granted += budget.withdraw()
    assert granted <= BURST + 0.2 * 10_000 + 1
    assert granted >= 0.2 * 10_000


def test_a_request_is_poison_after_two_deaths_for_a_while() -> None:
    suspects, now = Suspects([0] * 64), 1_800_000_000
    assert not suspects.any(now)
    assert suspects.died(0xFFFFFFFF, 1, now) == 1
    assert suspects.died(0xFFFFFFFF, 1, now) == 1  # many may have asked the same of one engine
    assert suspects.any(now)
    assert not suspects.poison(0xFFFFFFFF, now)
    assert suspects.died(0xFFFFFFFF, 2, now + SECONDS) == 2
    assert suspects.poison(0xFFFFFFFF, now + SECONDS)
    assert not suspects.poison(0x7FFFFFFF, now + SECONDS)
    assert not suspects.poison(0xFFFFFFFF, now + 2 * SECONDS + 1)
    assert suspects.died(0xFFFFFFFF, 3, now + 2 * SECONDS + 1) == 1


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50), st.integers(0, 2**32 - 1))
def test_words_fit_into_what_is_shared(checksums: list[int], last: int) -> None:
    import array

    suspects, now = Suspects(array.array("q", [0] * 8)), 1_800_000_000
    for engine, checksum in enumerate((*checksums, last, last)):
        suspects.died(checksum, engine, now)
    assert suspects.poison(last, now)
