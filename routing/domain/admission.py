"""Who may start and who waits, when a model takes only so many requests at once: places by key, and in turns.

The queue is bounded. When it is full, the key with the most places gives up its newest one to a key with fewer: a noisy
client fills the queue only as long as nobody else needs it.
"""

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """`pop` gives each key its turn, and each key its oldest item."""

    def __init__(self) -> None:
        self._keys: dict[str, deque[T]] = {}  # in the order of their turns
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, key: str, item: T, *, places: int) -> T | None:
        """Who has to leave for want of a place: this item, another one, or nobody."""
        mine = len(self._keys.get(key, ()))
        displaced: T | None = None
        if self._size >= places:
            noisy = max(self._keys, key=lambda each: len(self._keys[each]), default=key)
            if noisy == key or len(self._keys[noisy]) <= mine + 1:
                return item
            displaced = self._keys[noisy].pop()
            self._shrunk(noisy)
        self._keys.setdefault(key, deque()).append(item)
        self._size += 1
        return displaced

    def pop(self) -> T | None:
        key = next(iter(self._keys), None)
        if key is None:
            return None
        items = self._keys.pop(key)
        item = items.popleft()
        self._size -= 1
        if items:
            self._keys[key] = items  # its next turn comes after all others'
        return item

    def remove(self, key: str, item: T) -> bool:
        """Whether it was there."""
        items = self._keys.get(key)
        if items is None or item not in items:
            return False
        items.remove(item)
        self._shrunk(key)
        return True

    def _shrunk(self, key: str) -> None:
        self._size -= 1
        if not self._keys[key]:
            del self._keys[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests for a model: of one process, or of all."""

    running: int
    waiting: int

    @property
    def wanted(self) -> int:
        return self.running + self.waiting


def may_start(limit: int, mine: Demand, total: Demand) -> bool:
    """Whether a process may start one more of its requests. While several have some waiting, each keeps to its share of
    the limit: who sees a free place first would otherwise take all."""
    if total.running >= limit:
        return False
    if total.waiting <= mine.waiting:
        return True
    return mine.running * total.wanted < limit * mine.wanted
