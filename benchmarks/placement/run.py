"""How much of a fleet placement fills, and how fast it decides: `python -m benchmarks.placement.run [FLEETS]`.

Replicas arrive one by one and are placed for good. Compared with the exact optimum, which may choose whom to turn away,
and with a clairvoyant placer, which may not, but knows all later arrivals; "free of class order" is a clairvoyant that
need not give the first class of a list that fits. Needs ortools (requirements.txt beside this).
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from benchmarks.placement.exact import Program, clairvoyant
from benchmarks.placement.fleets import KINDS, Case, cases
from benchmarks.placement.speed import decisions
from fleet.domain.placement import FleetIndex, Placement, place
from fleet.domain.score import Holes

FLEETS = 200


def with_catalog(case: Case) -> FleetIndex:
    return FleetIndex.build(case.snapshot)


def without_catalog(case: Case) -> FleetIndex:
    return FleetIndex.build(replace(case.snapshot, models=()))


def best_fit(case: Case) -> FleetIndex:
    """The smallest domain that holds it, whatever that breaks."""
    index = without_catalog(case)
    return replace(index, holes={name: Holes(sizes=()) for name in index.cells})


METHODS: dict[str, Callable[[Case], FleetIndex]] = {
    "best fit by domain": best_fit,
    "holes of 2, 4, 8": without_catalog,
    "holes of the catalog": with_catalog,
}


def filled(case: Case, index: FleetIndex) -> int:
    """Cards placed when each goes where it is best by now."""
    cards = 0
    for pk in case.arrivals:
        found = place(index, case.profiles[pk])
        if isinstance(found, Placement):
            index = index.taking(found)
            cards += len(found.gpus)
    return cards


WORDS = """optimum: the most cards that can be placed at all, free to turn early ones away and to choose classes
bound clairvoyant: takes each that fits, in the first class of its list that has room when it arrives, as placement
  does; it knows all later arrivals, so where in that class each goes is settled only at the end
free clairvoyant: the same, but the class, too, is settled at the end: it may give one a later class of its list than it
  could have had, for the good of those that come later, which placement may not do"""


def against(mine: list[int], its: list[int]) -> str:
    """Cards in total, share of fleets below 90 %, the worst fleet."""
    ratios = [a / b if b else 1.0 for a, b in zip(mine, its, strict=True)]
    low = sum(ratio < 0.9 for ratio in ratios) / len(ratios)
    return f"{sum(mine) / sum(its):9.1%}{low:8.1%}{min(ratios):8.1%}"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else FLEETS
    optimum: list[int] = []
    seeing: list[int] = []
    free: list[int] = []
    found: dict[str, list[int]] = defaultdict(list)
    kinds: list[str] = []
    began = time.monotonic()
    for case in cases(count):
        optimum.append(Program(case).most())
        seeing.append(clairvoyant(case))
        free.append(clairvoyant(case, preferences=False))
        kinds.append(case.kind)
        for name, index in METHODS.items():
            found[name].append(filled(case, index(case)))
    print(f"{count} fleets in {time.monotonic() - began:.0f} s\n{WORDS}")
    print(f"{'':22}{'':>9}{'against the bound one':>25}{'':2}{'against the free one':>25}")
    heads = ("total", "< 90 %", "worst")
    print(
        f"{'':22}{'optimum':>9}"
        + "".join(f"{head:>{w}}" for w, head in zip((9, 8, 8, 11, 8, 8), heads * 2, strict=True))
    )
    for name, cards in [("free clairvoyant", free), ("bound clairvoyant", seeing), *found.items()]:
        print(f"{name:22}{sum(cards) / sum(optimum):9.1%}{against(cards, seeing)}  {against(cards, free)}")
    print(f"{'goal':22}{'':9}{'>= 99.3%':>9}{'<= 3%':>8}{'>= 70%':>8}")
    print("by kind of fleet, holes of the catalog: of the optimum, of the bound one, of the free one, worst of each:")
    for kind in KINDS:
        places = [number for number, each in enumerate(kinds) if each == kind]
        if places:
            mine = [found["holes of the catalog"][number] for number in places]
            parts = [[its[number] for number in places] for its in (optimum, seeing, free)]
            shares = "".join(f"{sum(mine) / sum(its):9.1%}" for its in parts)
            worst = (min(a / b if b else 1.0 for a, b in zip(mine, its, strict=True)) for its in parts[1:])
            print(f"  {kind:20}{shares}" + "".join(f"{each:9.1%}" for each in worst))
    print("one decision among 2,000 nodes of 8 cards, every rule on:")
    for name, times in decisions().items():
        median, late = (sorted(times)[len(times) * percent // 100] * 1000 for percent in (50, 99))
        print(f"  {name:22}median {median:8.3f} ms    99 % {late:8.3f} ms")


if __name__ == "__main__":
    main()
