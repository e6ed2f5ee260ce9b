"""The figures as a table in Markdown, with the ratios that the goals speak of and whether they are met."""

from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.router.measure import Router

OURS = "llmgw"
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("req/s", "requests_per_second", ",.0f"),
    ("CPU µs/request", "cpu_us_per_request", ".1f"),
    ("CPU µs/chunk", "cpu_us_per_chunk", ".1f"),
    ("first byte p50 µs", "first_p50_us", ",.0f"),
    ("p99 µs", "first_p99_us", ",.0f"),
    ("MiB at 1,000 streams", "mib", ".0f"),
    ("of these the largest process", "mib_largest", ".0f"),
    ("leaving p50 ms", "leave_p50_ms", ".1f"),
    ("max ms", "leave_max_ms", ".1f"),
    ("missed", "leave_missed", ".0f"),
    ("MB ahead of a stalled client", "ahead_mb", ".1f"),
)
#: figure, of which peer, at most
RATIOS = (
    ("cpu_us_per_request", "nginx", 1.75),
    ("cpu_us_per_request", "vllm-router", 0.5),
    ("cpu_us_per_chunk", "nginx", 1.25),
)
BOUNDS = (("mib", 45.0), ("leave_max_ms", 10.0), ("leave_missed", 0.0), ("ahead_mb", 12.0))
TITLES = {figure: title for title, figure, _ in COLUMNS}
#: The engine alone must be this much faster than the best router, or the load is what was measured.
CLEAR_FACTOR = 1.25


def drawn(routers: Sequence[Router], *, direct: str) -> str:
    by_name = {router.name: router for router in routers}
    lines = ["", "| | " + " | ".join(title for title, _, _ in COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for router in routers:
        # The engine itself has no router's processor time: what the difference to nothing shows is noise.
        cells = [_cell(router, figure, form) for _, figure, form in COLUMNS]
        lines.append(f"| {router.name} | " + " | ".join(cells) + " |")
    lines += ["", *_ratios(by_name), *_bounds(by_name), *_honest(routers, by_name[direct])]
    return "\n".join(lines)


def _cell(router: Router, figure: str, form: str) -> str:
    value = router.value(figure)
    return "–" if value is None or (router.process is None and figure.startswith("cpu")) else format(value, form)


def ratio(ours: Router, other: Router, figure: str) -> float:
    return median(a / b for a, b in zip(ours.rounds[figure], other.rounds[figure], strict=True))


def _ratios(by_name: dict[str, Router]) -> list[str]:
    lines = []
    ours = by_name.get(OURS)
    for figure, peer, most in RATIOS:
        if ours and peer in by_name:
            found = ratio(ours, by_name[peer], figure)
            lines.append(f"- {TITLES[figure]}: {found:.2f} x {peer}; the goal is {most}: {_met(found <= most)}")
    peers = [router for name, router in by_name.items() if router.process and not name.startswith(OURS)]
    if ours and peers:
        figure = "cpu_us_per_chunk"
        best = min(peers, key=lambda router: router.value(figure) or 0)
        found = ratio(ours, best, figure)
        lines.append(
            f"- {TITLES[figure]}: {found:.2f} x {best.name}, the best peer; the goal is below: {_met(found < 1)}"
        )
    for name, other in by_name.items():
        if ours and name.startswith(OURS) and other is not ours:
            both = (ratio(ours, other, figure) for figure in ("cpu_us_per_request", "cpu_us_per_chunk"))
            lines.append("- CPU µs/request {:.3f} x, /chunk {:.3f} x ".format(*both) + name)
    return lines


def _bounds(by_name: dict[str, Router]) -> list[str]:
    if OURS not in by_name:
        return []
    lines = []
    for figure, most in BOUNDS:
        value = by_name[OURS].value(figure)
        if value is not None:
            lines.append(f"- {TITLES[figure]}: {value:.1f}; the goal is at most {most:.0f}: {_met(value <= most)}")
    return lines


def _honest(routers: Sequence[Router], direct: Router) -> list[str]:
    """What makes the figures doubtful."""
    lines = [line for router in routers for line in router.trouble]
    of: Callable[[Router], float] = lambda router: router.value("requests_per_second") or 0.0  # noqa: E731
    best = max((router for router in routers if router.process), key=of, default=None)
    if best is not None:
        factor = of(direct) / of(best)
        verdict = (
            "the load is not the bottleneck" if factor >= CLEAR_FACTOR else "the LOAD IS THE BOTTLENECK: look at CPU"
        )
        lines.append(f"- the engine alone answers {factor:.2f} x as many requests as {best.name}, the best: {verdict}")
    return [line if line.startswith("-") else f"- {line}" for line in lines]


def _met(yes: bool) -> str:
    return "met" if yes else "NOT met"
