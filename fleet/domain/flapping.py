"""A node that comes and goes: nothing new is placed there for a time that doubles with each return."""

from datetime import datetime, timedelta

#: A return so long after the one before is the first again.
FORGOTTEN_AFTER = timedelta(hours=1)
#: So many times the first one is the longest.
LONGEST = 30


def returns(count: int, last_at: datetime | None, now: datetime) -> int:
    """How many there are with this one. The clock of both times is the database's; one that was put back forgets."""
    follows = last_at is not None and last_at <= now < last_at + FORGOTTEN_AFTER
    return count + 1 if follows else 1


def worth_telling(count: int) -> bool:
    """Of a node that comes and goes: a word at ever longer distances, since each says that it goes on.

    >>> [count for count in range(40) if worth_telling(count)]
    [2, 3, 5, 9, 17, 33]
    """
    return count > 1 and (count - 1).bit_count() == 1


def damped(until: datetime | None, now: datetime) -> bool:
    """By the database's clock. What it does meanwhile is known of it, and no news."""
    return until is not None and now < until


def damping(count: int, first: timedelta) -> timedelta:
    """For how long after it: one return happens to everybody.

    >>> [damping(count, timedelta(seconds=60)).total_seconds() for count in (1, 2, 3, 4, 99)]
    [0.0, 60.0, 120.0, 240.0, 1800.0]
    """
    return first * min(2 ** min(count - 2, 10), LONGEST) if count > 1 else timedelta()
