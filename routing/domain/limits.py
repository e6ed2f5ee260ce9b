"""What a key may use: requests and tokens a minute, requests at once, tokens a month.

A minute slides: what was used in the clock's last minute counts by the share of it that is still within 60 s. So a
limit is neither doubled at a minute's turn nor does it need a list of requests.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

MINUTE_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    tokens_per_month: int | None = None

    @property
    def any(self) -> bool:
        return self is not NONE and self != NONE


NONE = Limits()
NAMES = tuple(each.name for each in fields(Limits))


@dataclass(slots=True)
class Minute:
    """What one process counted of one figure in one minute of the clock and in the one before it."""

    number: int = 0
    count: int = 0
    before: int = 0

    def turn(self, number: int) -> None:
        if number != self.number:
            self.before = self.count if number == self.number + 1 else 0
            self.count = 0
            self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Slid:
    """A figure over all processes at one moment."""

    count: int
    before: int
    share: float  # of the clock's minute that is over

    @property
    def used(self) -> float:
        return self.count + self.before * (1 - self.share)

    def wait_seconds(self, limit: int) -> int:
        """Whole seconds until one more fits, as far as what is used already says; at least one."""
        room = limit - 1
        if self.count <= room:
            share = 1 - (room - self.count) / self.before if self.before else 0.0
            seconds = (share - self.share) * MINUTE_SECONDS
        else:
            seconds = (1 - self.share) * MINUTE_SECONDS + (1 - max(room, 0) / self.count) * MINUTE_SECONDS
        return max(1, math.ceil(seconds))


def slid(minutes: Iterable[tuple[int, int, int]], now: float) -> Slid:
    """The processes' (number, count, before) at `now`, seconds of the machine's clock."""
    number, seconds = divmod(now, MINUTE_SECONDS)
    count = before = 0
    for each, its_count, its_before in minutes:
        if each == number:
            count += its_count
            before += its_before
        elif each == number - 1:
            before += its_count
    return Slid(count=count, before=before, share=seconds / MINUTE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """A key's figures over all processes."""

    requests: Slid
    tokens: Slid
    at_once: int
    tokens_in_month: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceeded:
    code: str
    text: str
    retry_after: int


def exceeded(limits: Limits, used: Used, *, tokens: int, month_ends_in: float) -> Exceeded | None:
    """Why one more request of about so many tokens is too much; None: it may come.

    A request that alone is over the tokens of a minute may come when nothing else was used: else it never could.
    """
    budget = limits.tokens_per_month
    if budget is not None and used.tokens_in_month >= budget:
        text = f"the key has used {used.tokens_in_month} of its {budget} tokens of this month"
        return Exceeded(code="insufficient_quota", text=text, retry_after=max(1, math.ceil(month_ends_in)))
    if limits.concurrency is not None and used.at_once >= limits.concurrency:
        text = f"the key has {used.at_once} requests under way, {limits.concurrency} may be"
        return Exceeded(code="rate_limit_exceeded", text=text, retry_after=1)
    rate = limits.requests_per_minute
    if rate is not None and used.requests.used + 1 > rate:
        text = f"the key may ask {rate} times a minute"
        return Exceeded(code="rate_limit_exceeded", text=text, retry_after=used.requests.wait_seconds(rate))
    rate = limits.tokens_per_minute
    if rate is not None and used.tokens.used > 0 and used.tokens.used + tokens > rate:
        text = f"the key may use {rate} tokens a minute"
        return Exceeded(code="rate_limit_exceeded", text=text, retry_after=used.tokens.wait_seconds(rate - tokens + 1))
    return None
