"""What the processes of one machine's router share: the grid of counts, and a file of each about itself."""

import contextlib
import json
import logging
import time
from pathlib import Path

from routing.dataplane.metrics import Metrics, others
from routing.dataplane.router import Router
from routing.grid import Grid, GridError

log = logging.getLogger("routing")


class Shared:
    def __init__(self, folder: Path | None, grid_file: int | None = None) -> None:
        """Without a folder this process is alone. `grid_file`: the counts' file descriptor, where the parent opened
        it."""
        self._folder = folder
        self.grid = _grid(folder, grid_file)
        self._name = f"{self.grid.column}.json"

    def resume(self, router: Router) -> None:
        """Go on with the counts of the process that had this column before: counters never go back."""
        if self._folder is not None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                before = json.loads((self._folder / self._name).read_bytes())
                router.metrics.add(before["metrics"], gauges=False)

    def all_metrics(self, own: Metrics) -> Metrics:
        if self._folder is None:
            return own
        total = Metrics()
        total.add(own.snapshot())
        for snapshot, runs in others(self._folder, than=self._name, now=time.time()):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                total.add(snapshot, gauges=runs)
        return total

    def text(self, router: Router) -> bytes:
        state = {
            "metrics": router.snapshot().snapshot(),
            "ejections": router.ejections(),
            "flows": router.flows(),
            "at": time.monotonic(),
        }
        return json.dumps(state).encode()

    def write(self, text: bytes) -> None:
        if self._folder is not None:
            path = self._folder / self._name
            path.with_suffix(".new").write_bytes(text)
            path.with_suffix(".new").replace(path)

    def tell(self, router: Router) -> None:
        """As the last thing: nothing is left out or under way any more."""
        router.metrics.gauges.clear()
        with contextlib.suppress(OSError):
            self.write(json.dumps({"metrics": router.metrics.snapshot(), "ejections": []}).encode())


def _grid(folder: Path | None, file: int | None) -> Grid:
    try:
        if file is not None:
            return Grid(file=file)
        return Grid(folder / "grid" if folder is not None else None)
    except (OSError, GridError) as error:
        # Serving goes on: limits then hold in each process by itself.
        log.error(json.dumps({"event": "unshared", "folder": str(folder), "error": str(error)}))
        return Grid()
