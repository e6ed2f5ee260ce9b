"""Requests during which engines died: refused after the second death, or one would end replica after replica.

What is known lies in words that all processes share: a request's checksum, how many engines died, which died last, and
when. Engines are counted, not requests: many clients may have asked the same of one that died for another reason. Of
two requests that fall on one word the later is remembered.
"""

from routing.domain.affinity import Memory

#: How many deaths make a request poison, and for how long it is refused after the last.
ENOUGH = 2
SECONDS = 120

#: Of the 31 bits beside the checksum: the last death's time, the engine, and the count.
_TIME_BITS, _ENGINE_BITS, _MOST = 16, 12, 7
_TIME_MASK = (1 << _TIME_BITS) - 1


class Suspects:
    """`now`: whole seconds of the machine's clock. The first word says when anything died last."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    @property
    def ever(self) -> bool:
        return self._memory[0] != 0

    def any(self, now: int) -> bool:
        """Whether it is worth while to make a checksum."""
        return self._memory[0] != 0 and now - self._memory[0] <= SECONDS

    def died(self, checksum: int, engine: int, now: int) -> int:
        """Engines that died up to now, this one (a number that tells it from others) included."""
        count, last = self._deaths(checksum, now)
        engine %= 1 << _ENGINE_BITS
        if not count or engine != last:
            count = min(count + 1, _MOST)
        low = (count << _ENGINE_BITS | engine) << _TIME_BITS | now & _TIME_MASK
        self._memory[self._place(checksum)] = checksum << 31 | low
        self._memory[0] = now
        return count

    def poison(self, checksum: int, now: int) -> bool:
        return self._deaths(checksum, now)[0] >= ENOUGH

    def _deaths(self, checksum: int, now: int) -> tuple[int, int]:
        """How many, and the last engine."""
        word = self._memory[self._place(checksum)]
        if word >> 31 != checksum or (now - word) & _TIME_MASK > SECONDS:
            return 0, 0
        return word >> _TIME_BITS + _ENGINE_BITS & _MOST, word >> _TIME_BITS & (1 << _ENGINE_BITS) - 1

    def _place(self, checksum: int) -> int:
        return 1 + checksum % (len(self._memory) - 1)
