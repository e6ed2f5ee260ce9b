"""Requests during which engines died: refused after the second death, or one would end replica after replica.

What is known lies in words that all processes share: a request's checksum, its deaths, and when the last was. Of two
requests that fall on one word the later is remembered.
"""

from routing.domain.affinity import Memory

#: How many deaths make a request poison, and for how long it is refused after the last.
ENOUGH = 2
SECONDS = 120

_TIME_BITS = 24


class Suspects:
    """`now`: whole seconds of the machine's clock. The first word says when anything died last."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def any(self, now: int) -> bool:
        """Whether it is worth while to make a checksum."""
        return self._memory[0] != 0 and now - self._memory[0] <= SECONDS

    def died(self, checksum: int, now: int) -> int:
        """Deaths up to now, this one included."""
        count = min(self._deaths(checksum, now) + 1, 127)
        self._memory[self._place(checksum)] = checksum << 31 | count << _TIME_BITS | now & (1 << _TIME_BITS) - 1
        self._memory[0] = now
        return count

    def poison(self, checksum: int, now: int) -> bool:
        return self._deaths(checksum, now) >= ENOUGH

    def _deaths(self, checksum: int, now: int) -> int:
        word = self._memory[self._place(checksum)]
        past = (now - word) & (1 << _TIME_BITS) - 1
        return word >> _TIME_BITS & 127 if word >> 31 == checksum and past <= SECONDS else 0

    def _place(self, checksum: int) -> int:
        return 1 + checksum % (len(self._memory) - 1)
