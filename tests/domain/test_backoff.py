"""Waits after crashes."""

from datetime import UTC, datetime, timedelta

from fleet.domain.backoff import LONGEST, waits

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_wait_ends_at_its_time() -> None:
    assert waits(NOW + timedelta(seconds=1), NOW)
    assert waits(NOW + LONGEST, NOW)
    assert not waits(NOW, NOW)
    assert not waits(None, NOW)


def test_a_clock_that_was_put_back_makes_no_wait_longer_than_the_longest() -> None:
    assert not waits(NOW + timedelta(hours=1), NOW)
