"""When an endpoint is taken out of the choice, and when it is asked whether it may come back.

A connection that fails takes it out at once; answers of 500 and above only several in a row, because one request may be
to blame for one of them. It comes back when a probe is answered: no client's request is spent on finding out.
"""

from dataclasses import dataclass

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
#: Server errors in a row that count as a failure of the endpoint.
ERRORS_IN_A_ROW = 5


@dataclass(slots=True)
class Health:
    """What one process knows of an endpoint; `now` is always that process's clock."""

    reason: str = ""  # why it is out; empty: it is in
    since: float = 0.0
    probe_at: float = 0.0  # the earliest next probe
    failures: int = 0  # in a row; a probe's success does not end the row, an answer's does
    errors: int = 0  # answers of 500 and above in a row

    @property
    def well(self) -> bool:
        """A good answer would change nothing."""
        return not (self.errors or self.failures or self.reason)

    def failed(self, reason: str, *, now: float) -> bool:
        """A connection broke, or a probe did; whether the endpoint was in until now."""
        was_in = not self.reason
        self.failures += 1
        self.since = now if was_in else self.since
        self.reason = reason
        self.probe_at = now + min(FIRST_SECONDS * 2 ** min(self.failures - 1, 10), LONGEST_SECONDS)
        return was_in

    def answered(self, status: int, *, now: float) -> bool:
        """An answer came; whether it took the endpoint out."""
        if status < 500:
            self.errors = self.failures = 0
            self.reason = ""
            return False
        self.errors += 1
        if self.errors < ERRORS_IN_A_ROW:
            return False
        self.errors = 0
        return self.failed(f"answered {status} {ERRORS_IN_A_ROW} times in a row", now=now)

    def probed(self) -> None:
        """A probe was answered: back in, with the row of failures remembered until a request succeeds."""
        self.reason = ""
