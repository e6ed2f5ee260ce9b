"""How old a stamp is, by the clock that made it.

A clock that was put back leaves stamps that lie ahead of it. Taken at their word they would delay whatever waits for
them to grow old for as long as the step was, so they count as telling nothing.
"""

from datetime import datetime, timedelta

#: Two statements that run at once may see each other's stamps as of a moment ahead. A smaller step delays by no more.
SLACK = timedelta(seconds=5)


def age(at: datetime, now: datetime) -> timedelta | None:
    """Never negative; None: the clock was put back since.

    >>> noon = datetime(2026, 1, 1, 12)
    >>> age(noon, noon + timedelta(seconds=7)), age(noon, noon - timedelta(seconds=1)), age(noon, datetime(2026, 1, 1))
    (datetime.timedelta(seconds=7), datetime.timedelta(0), None)
    """
    return None if now < at - SLACK else max(now - at, timedelta(0))
