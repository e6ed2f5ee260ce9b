"""What /metrics shows. Each process counts for itself and says so in a file once a second; whoever is asked adds up."""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FIRST_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
GAP_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)

#: Name, labels' names, help.
COUNTERS = {
    "requests": (("model", "endpoint", "status"), "Requests that were answered, by what the client got."),
    "errors": (("model", "endpoint", "kind"), "Attempts that failed, by how."),
    "refused": (("model", "endpoint", "kind"), "Requests that were refused before an engine saw them, by why."),
    "retries": (("model", "endpoint", "kind"), "Second attempts."),
    "ejections": (("model", "endpoint", "kind"), "How often an endpoint was taken out of the choice."),
    "panics": (("model", "endpoint", "kind"), "Requests for which ejected endpoints counted, for want of others."),
    "tokens": (("model", "endpoint", "kind"), "Tokens by kind: prompt, completion."),
    "lost": (("model", "endpoint", "kind"), "Rows that no disk took in time: usage, access_log."),
}
GAUGES = {
    "in_flight": "Requests under way.",
    "queue": "Requests that wait for a place.",
    "ejected": "Whether the endpoint is left out.",
}
HISTOGRAMS = {
    "first_byte_seconds": (FIRST_BOUNDS, "From the request's last byte sent to the answer's head."),
    "chunk_gap_seconds": (GAP_BOUNDS, "Between two pieces of a stream."),
}

Labels = tuple[str, str, str]


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Timings:
    """Of one model at one endpoint."""

    __slots__ = ("completion", "first", "gap", "prompt")

    def __init__(self) -> None:
        self.prompt = self.completion = 0  # tokens
        self.first = Histogram(FIRST_BOUNDS)
        self.gap = Histogram(GAP_BOUNDS)


class Metrics:
    def __init__(self) -> None:
        self.counters: dict[tuple[str, Labels], int] = defaultdict(int)
        self.requests: dict[tuple[str, str, int], int] = defaultdict(int)  # by model, endpoint, status
        self.timings: dict[tuple[str, str], Timings] = defaultdict(Timings)
        self.gauges: dict[tuple[str, Labels], float] = {}

    def count(self, name: str, model: str, endpoint: str = "", kind: str = "", by: int = 1) -> None:
        self.counters[name, (model, endpoint, kind)] += by

    def totals(self) -> dict[tuple[str, Labels], int]:
        """The counters, with those that each request changes: they are kept apart, where that is cheapest."""
        counters = self.counters.copy()
        for (model, endpoint, status), value in self.requests.items():
            counters["requests", (model, endpoint, str(status))] += value
        for (model, endpoint), each in self.timings.items():
            for kind, value in (("prompt", each.prompt), ("completion", each.completion)):
                if value:
                    counters["tokens", (model, endpoint, kind)] += value
        return counters

    def snapshot(self) -> dict[str, Any]:
        return {
            "counters": [[name, *labels, value] for (name, labels), value in self.totals().items()],
            "gauges": [[name, *labels, value] for (name, labels), value in self.gauges.items()],
            "timings": [
                [*names, each.first.counts, each.first.total, each.gap.counts, each.gap.total]
                for names, each in self.timings.items()
            ],
        }

    def add(self, snapshot: Mapping[str, Any], *, gauges: bool = True) -> None:
        for name, model, endpoint, kind, value in snapshot["counters"]:
            self.counters[name, (model, endpoint, kind)] += value
        for name, model, endpoint, kind, value in snapshot["gauges"] if gauges else ():
            key = name, (model, endpoint, kind)
            self.gauges[key] = self.gauges.get(key, 0) + value
        for model, endpoint, first, first_total, gap, gap_total in snapshot["timings"]:
            mine = self.timings[model, endpoint]
            for histogram, counts, total in ((mine.first, first, first_total), (mine.gap, gap, gap_total)):
                histogram.counts = [a + b for a, b in zip(histogram.counts, counts, strict=True)]
                histogram.total += total

    def text(self) -> str:
        """In Prometheus' text format."""
        lines, totals = [], self.totals()
        for name, (labels, text) in COUNTERS.items():
            rows = {key[1]: value for key, value in totals.items() if key[0] == name}
            lines += _family(f"{name}_total", "counter", text, labels, rows)
        for name, text in GAUGES.items():
            values = {key[1]: value for key, value in self.gauges.items() if key[0] == name}
            lines += _family(name, "gauge", text, ("model", "endpoint", "kind"), values)
        for name, (bounds, text) in HISTOGRAMS.items():
            lines += [f"# HELP llmgw_router_{name} {text}", f"# TYPE llmgw_router_{name} histogram"]
            for (model, endpoint), timings in sorted(self.timings.items()):
                histogram = timings.first if bounds is FIRST_BOUNDS else timings.gap
                lines += _buckets(f"llmgw_router_{name}", (model, endpoint), histogram)
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, names: Iterable[str], rows: Mapping[Labels, float]) -> list[str]:
    name = f"llmgw_router_{name}"
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return lines + [f"{name}{_labels(zip(names, labels, strict=True))} {rows[labels]:g}" for labels in sorted(rows)]


def _buckets(name: str, labels: tuple[str, str], histogram: Histogram) -> list[str]:
    given = [("model", labels[0]), ("endpoint", labels[1])]
    lines, total = [], 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        lines.append(f"{name}_bucket{_labels([*given, ('le', bound)])} {total}")
    lines.append(f"{name}_sum{_labels(given)} {histogram.total:.6f}")
    return [*lines, f"{name}_count{_labels(given)} {total}"]


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    shown = [f'{name}="{_escaped(value)}"' for name, value in pairs if value]
    return "{" + ",".join(shown) + "}" if shown else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def others(folder: Path, *, than: str, now: float, fresh_seconds: float = 5.0) -> Iterable[tuple[dict[str, Any], bool]]:
    """What the other processes said last, and whether they still run: the counts of one that ended go on to count."""
    for path in sorted(folder.glob("*.json")):
        if path.name == than:
            continue
        try:
            yield json.loads(path.read_bytes())["metrics"], now - path.stat().st_mtime < fresh_seconds
        except (OSError, ValueError, KeyError, TypeError):
            continue
