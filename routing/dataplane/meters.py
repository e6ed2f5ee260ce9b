"""What limited keys use, over all processes. A request is charged an estimate at its start and the truth at its end."""

from datetime import UTC, datetime

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
        used = Used(
            requests=self._slid(_REQUESTS, now),
            tokens=self._slid(_TOKENS, now),
            at_once=self._grid.total(self._row, _AT_ONCE),
            tokens_in_month=self._month_tokens(now) if self.limits.tokens_per_month is not None else 0,
        )
        found = exceeded(self.limits, used, tokens=tokens, month_ends_in=_month_ends_in(now))
        if found is None:
            self._turn(now)
            words, cell = self._grid.words, self._cell
            words[cell + _AT_ONCE] += 1
            words[cell + _REQUESTS] += 1
            words[cell + _TOKENS] += tokens
        return found

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
    moment = datetime.fromtimestamp(now, UTC)
    return moment.year * 12 + moment.month


def _month_ends_in(now: float) -> float:
    moment = datetime.fromtimestamp(now, UTC)
    year, month = (moment.year, moment.month + 1) if moment.month < 12 else (moment.year + 1, 1)
    return datetime(year, month, 1, tzinfo=UTC).timestamp() - now
