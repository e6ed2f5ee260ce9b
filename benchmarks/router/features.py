"""What each of the router's features costs: `python -m benchmarks.router.features [--rounds N]`.

A router child with all of them, and one for each that lacks it, are loaded in turn, round after round; a cost is the
median of the differences inside each round. A feature that can't be switched off is patched away in the child
(`--child NAME`), so what is measured is this code and not a build of its own.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.router.measure import Bench, Router, in_turn, start
from benchmarks.router.peers import Place, nginx
from routing.dataplane import exchange
from routing.dataplane.choice import Chooser
from routing.dataplane.metrics import Histogram
from routing.dataplane.router import Router as Served
from routing.domain import http1
from routing.domain.usage import Facts
from routing.keys import digest
from routing.server import __main__ as child
from tests.e2e.harness import ROOT

ALL = "all features"


def nothing(*_: Any, **__: Any) -> None:
    """In place of what is switched off."""


class Unread:
    """An answer whose usage is not read."""

    def __init__(self) -> None:
        self.facts = Facts()

    def feed(self, data: bytes) -> bytes:
        return data

    def finish(self) -> bytes:
        return b""


def without_usage_rows() -> None:
    def proxied(self: Served, request: Any, model: str, endpoint: str, told: int, *_: Any) -> None:
        self._end(request, told, model, endpoint)

    Served.proxied = proxied  # type: ignore[assignment]


def without_balance() -> None:
    Chooser.begin = Chooser.end = nothing  # type: ignore[assignment]


def without_health() -> None:
    Chooser.answered = nothing  # type: ignore[assignment]


def without_retries() -> None:
    Chooser.came = nothing  # type: ignore[assignment]


def without_times() -> None:
    Histogram.note = nothing  # type: ignore[assignment]


def without_reading_usage() -> None:
    exchange.WholeReader = Unread  # type: ignore[assignment,misc]


def without_known_heads() -> None:
    http1.apart = nothing  # type: ignore[assignment]


#: What is patched, arguments, and what is added to the key.
VARIANTS: dict[str, tuple[Callable[[], None], list[str], dict[str, Any]]] = {
    ALL: (nothing, [], {}),
    "without keys": (nothing, ["--no-auth"], {}),
    "without access log": (nothing, ["--no-access-log"], {}),
    "without usage rows": (without_usage_rows, [], {}),
    "without reading usage": (without_reading_usage, [], {}),
    "without times in metrics": (without_times, [], {}),
    "without least outstanding": (without_balance, [], {}),
    "without passive health": (without_health, [], {}),
    "without retry budget": (without_retries, [], {}),
    "with a limited key": (nothing, [], {"limits": {"requests_per_minute": 10**9, "tokens_per_minute": 10**12}}),
    "with heads never seen before": (without_known_heads, [], {}),
}


def command(name: str, place: Place) -> list[str]:
    _, arguments, more = VARIANTS[name]
    routes = place.folder / "routes.json"
    endpoint = {"id": "m@engine", "url": f"http://127.0.0.1:{place.engine_port}"}
    key = {"name": "bench", "prefix": place.key.split("_", 2)[1], "sha256": digest(place.key), **more}
    routes.write_text(json.dumps({"version": 1, "models": [{"name": "m", "endpoints": [endpoint]}], "keys": [key]}))
    argv = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "benchmarks.router.features", "--child", name]
    argv += ["--routes", str(routes), "--listen", f"127.0.0.1:{place.port}", "--usage-dir", f"{place.folder}/usage"]
    return [*argv, "--shared-dir", f"{place.folder}/router", *arguments]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.router.features")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    return parser


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        patch, _, _ = VARIANTS[sys.argv[2]]
        patch()
        del sys.argv[1:3]
        sys.exit(child.main())
    args = parser().parse_args()
    bench = Bench.here(quick=True, seconds=args.seconds)
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        routers: list[Router] = []
        try:
            for name, each in {"nginx": nginx, **{name: partial(command, name) for name in VARIANTS}}.items():
                routers.append(start(name.replace(" ", "-"), each, bench, Path(folder)))
            for number in range(args.rounds):
                for router in in_turn(routers, number):
                    router.closed()
        finally:
            for router in routers:
                router.close()
    print(_drawn(routers))


def _drawn(routers: list[Router]) -> str:
    floor, whole = (router.rounds["cpu_us_per_request"] for router in routers[:2])
    lines = ["| | CPU µs/request | beside all features | x nginx | waited for the core |", "|---|---|---|---|---|"]
    for router in routers:
        found = router.rounds["cpu_us_per_request"]
        change = median(a - b for a, b in zip(found, whole, strict=True))
        ratio = median(a / b for a, b in zip(found, floor, strict=True))
        name = router.name.replace("-", " ")
        lines.append(f"| {name} | {median(found):.1f} | {change:+.1f} | {ratio:.2f} | {router.value('waited'):.0%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
