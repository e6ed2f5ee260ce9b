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
    print(f"{count} fleets in {time.monotonic() - began:.0f} s; in % of what the clairvoyant placed")
    print(f"{'':24}{'optimum':>9}{'clairv.':>9}{'< 90 %':>9}{'worst':>9}")
    for name, cards in [("free of class order", free), ("clairvoyant", seeing), *found.items()]:
        ratios = [mine / its if its else 1.0 for mine, its in zip(cards, seeing, strict=True)]
        low = sum(ratio < 0.9 for ratio in ratios) / count
        print(f"{name:24}{sum(cards) / sum(optimum):9.1%}{sum(cards) / sum(seeing):9.1%}{low:9.1%}{min(ratios):9.1%}")
    print("by kind of fleet, holes of the catalog:")
    for kind in KINDS:
        places = [number for number, each in enumerate(kinds) if each == kind]
        if places:
            mine = [found["holes of the catalog"][number] for number in places]
            its = [seeing[number] for number in places]
            worst = min(a / b if b else 1.0 for a, b in zip(mine, its, strict=True))
            print(
                f"  {kind:22}{sum(mine) / sum(optimum[n] for n in places):9.1%}{sum(mine) / sum(its):9.1%}{worst:18.1%}"
            )
    print("one decision among 2,000 nodes of 8 cards, every rule on:")
    for name, times in decisions().items():
        median, late = (sorted(times)[len(times) * percent // 100] * 1000 for percent in (50, 99))
        print(f"  {name:22}median {median:8.3f} ms    99 % {late:8.3f} ms")


if __name__ == "__main__":
    main()
