"""How long a replica that failed waits for its next try."""

from datetime import datetime, timedelta

FIRST = timedelta(seconds=10)
LONGEST = timedelta(seconds=300)
RESET_AFTER = timedelta(minutes=10)  # of ready: the crashes before are forgiven


def pause(crash_count: int, *, jitter: float) -> timedelta:
    """10 s x 2 per crash up to 300 s (DESIGN.md section 3); `jitter` in 0..1 takes up to a fifth off.

    >>> pause(1, jitter=0.0), pause(3, jitter=0.0), pause(50, jitter=0.0)
    (datetime.timedelta(seconds=10), datetime.timedelta(seconds=40), datetime.timedelta(seconds=300))
    """
    doubled = FIRST * 2 ** min(max(crash_count, 1) - 1, 10)
    return min(doubled, LONGEST) * (1 - 0.2 * jitter)


def waits(next_try_at: datetime | None, now: datetime) -> bool:
    """Whether a try is still to come. One further off than any pause was set before the clock was put back."""
    return next_try_at is not None and now < next_try_at <= now + LONGEST
