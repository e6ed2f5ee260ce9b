"""What limited keys use, over all processes. A request is charged an estimate at its start and the truth at its end."""

from datetime import UTC, datetime
from functools import lru_cache

from routing.domain.limits import Exceeded, Limits, Slid, Used, exceeded, slid
from routing.grid import Grid

_AT_ONCE, _MINUTE, _REQUESTS, _REQUESTS_BEFORE, _TOKENS, _TOKENS_BEFORE, _MONTH = 0, 2, 3, 4, 5, 6, 7
_MONTH_SHIFT = 48  # a month's number and its tokens share a word: both change at once
#: English text has about four bytes a token.
BYTES_PER_TOKEN = 4


class Meter:
    """One key's."""

    def __init__(self, grid: Grid, row: int) -> None:
        self.limits = Limits()
        self._grid, self._row, self._cell = grid, row, grid.cell(row)
        self._known, self._known_at = 0, 0  # the database's figure of the month, and ours when it came

    def update(self, limits: Limits, known_tokens: int, now: float) -> None:
        self.limits = limits
        if known_tokens != self._known:
            self._known, self._known_at = known_tokens, self._own_month(now)

    def admit(self, body_bytes: int, now: float) -> Exceeded | None:
        """Charge one more request, unless it is too much. `now`: the machine's clock."""
        tokens = body_bytes // BYTES_PER_TOKEN
        found = None if self._far(tokens, now) else self._exceeded(tokens, now)
        if found is None:
            self._turn(now)
            words, cell = self._grid.words, self._cell
            words[cell + _AT_ONCE] += 1
            words[cell + _REQUESTS] += 1
            words[cell + _TOKENS] += tokens
        return found

    def _far(self, tokens: int, now: float) -> bool:
        """Whether no limit is near: two whole minutes together are within it, so that what of them slides out of sight
        need not be reckoned. So it is for nearly all requests, and it takes a fifth of the time."""
        words, number = self._grid.words, int(now // 60)
        at_once = requests = used = 0
        for cell in self._grid.cells(self._row):
            at_once += words[cell + _AT_ONCE]
            minute = words[cell + _MINUTE]
            if minute == number or minute == number - 1:
                requests += words[cell + _REQUESTS]
                used += words[cell + _TOKENS]
                if minute == number:
                    requests += words[cell + _REQUESTS_BEFORE]
                    used += words[cell + _TOKENS_BEFORE]
        limits = self.limits
        return (
            (limits.requests_per_minute is None or requests < limits.requests_per_minute)
            and (limits.tokens_per_minute is None or used + tokens <= limits.tokens_per_minute)
            and (limits.concurrency is None or at_once < limits.concurrency)
            and (limits.tokens_per_month is None or self._month_tokens(now) < limits.tokens_per_month)
        )

    def _exceeded(self, tokens: int, now: float) -> Exceeded | None:
        used = Used(
            requests=self._slid(_REQUESTS, now),
            tokens=self._slid(_TOKENS, now),
            at_once=self._grid.total(self._row, _AT_ONCE),
            tokens_in_month=self._month_tokens(now) if self.limits.tokens_per_month is not None else 0,
        )
        return exceeded(self.limits, used, tokens=tokens, month_ends_in=_month_ends_in(now))

    def settle(self, body_bytes: int, tokens: int, now: float) -> None:
        self._turn(now)
        words, cell = self._grid.words, self._cell
        words[cell + _AT_ONCE] -= 1
        words[cell + _TOKENS] = max(words[cell + _TOKENS] + tokens - body_bytes // BYTES_PER_TOKEN, 0)
        month = _month(now) << _MONTH_SHIFT
        words[cell + _MONTH] = max(words[cell + _MONTH], month) + tokens

    def _turn(self, now: float) -> None:
        words, cell, number = self._grid.words, self._cell, int(now // 60)
        old = words[cell + _MINUTE]
        if number != old:
            for field in (_REQUESTS, _TOKENS):
                words[cell + field + 1] = words[cell + field] if number == old + 1 else 0
                words[cell + field] = 0
            words[cell + _MINUTE] = number

    def _slid(self, field: int, now: float) -> Slid:
        columns = [self._grid.fields(self._row, each) for each in (_MINUTE, field, field + 1)]
        return slid(zip(*columns, strict=True), now)

    def _own_month(self, now: float) -> int:
        month = _month(now)
        mask = (1 << _MONTH_SHIFT) - 1
        words = self._grid.fields(self._row, _MONTH)
        return sum(word & mask for word in words if word >> _MONTH_SHIFT == month)

    def _month_tokens(self, now: float) -> int:
        """The database also knows what other machines' routers served; what is newer than its figure is ours."""
        own = self._own_month(now)
        return max(own, self._known + own - self._known_at)


def _month(now: float) -> int:
    return _month_of_hour(int(now // 3600))


@lru_cache(maxsize=4)
def _month_of_hour(hour: int) -> int:
    """A month begins with an hour."""
    moment = datetime.fromtimestamp(hour * 3600, UTC)
    return moment.year * 12 + moment.month


def _month_ends_in(now: float) -> float:
    moment = datetime.fromtimestamp(now, UTC)
    year, month = (moment.year, moment.month + 1) if moment.month < 12 else (moment.year + 1, 1)
    return datetime(year, month, 1, tzinfo=UTC).timestamp() - now
