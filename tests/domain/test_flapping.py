"""How often a node may come and go before nothing new is placed there, and for how long."""

from datetime import UTC, datetime, timedelta

import pytest

from fleet.domain import flapping

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("before", "minutes_ago", "after"),
    [(0, None, 1), (1, 1, 2), (5, 59, 6), (5, 60, 1), (5, -1, 1)],
    ids=["first", "again", "within the hour", "forgotten", "the clock was put back"],
)
def test_a_return_counts_on_when_the_one_before_was_within_the_hour(
    before: int, minutes_ago: int | None, after: int
) -> None:
    last_at = None if minutes_ago is None else NOW - timedelta(minutes=minutes_ago)
    assert flapping.returns(before, last_at, NOW) == after


def test_the_time_grows_and_is_bounded_and_one_return_costs_nothing() -> None:
    first = timedelta(seconds=60)
    pauses = [flapping.damping(count, first).total_seconds() for count in range(1, 12)]
    assert pauses[:5] == [0, 60, 120, 240, 480]
    assert pauses[-1] == flapping.damping(10**6, first).total_seconds() == 1800
    assert flapping.damping(9, timedelta()) == timedelta()
