"""How many second attempts there may be: a share of the requests, and a burst as large as what one engine may hold.

Without a bound a fleet that is down gets twice its load. With a share alone the end of one of two replicas, which asks
for a second attempt of half the requests at once, would fail most of them.
"""

from dataclasses import dataclass

SHARE = 0.2
BURST = 256.0


@dataclass(slots=True)
class RetryBudget:
    left: float = BURST

    def deposit(self) -> None:
        """A request came."""
        if self.left < BURST:
            self.left += SHARE

    def withdraw(self) -> bool:
        """Whether one more attempt may be made."""
        if self.left < 1:
            return False
        self.left -= 1
        return True
