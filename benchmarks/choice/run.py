"""Least outstanding beside prefix affinity on synthetic traces.

python -m benchmarks.choice.run [--seeds N]
"""

import argparse
from statistics import mean, median

from benchmarks.choice.simulation import SLOTS, run, trace

REPLICAS = 4
CACHE_BLOCKS = 6000


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.choice.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="traces of each kind")
    return parser


def main() -> None:
    seeds = range(max(parser().parse_args().seeds, 1))
    capacity = REPLICAS * SLOTS  # requests a second, at about one second each
    columns = f"{'hits':>6} {'p50 ms':>7} {'p99 ms':>7}"
    print("medians over the traces; a p99 of some thousand requests differs by 5 % by chance alone")
    print(f"{'':11} | {'least outstanding':^22} | {'with affinity':^22} | {'hits':>6} | p99 ratio")
    print(f"{'load':>5} {'hot':>5} | {columns} | {columns} | {'gain':>6} | median  worst")
    gains, ratios = [], []
    for load in (0.3, 0.6, 0.8, 0.95):
        for hot in (0.1, 0.5, 0.9):
            plain, near = [], []
            for seed in seeds:
                asked = trace(seed, per_second=load * capacity, seconds=120, hot=hot)
                for results, with_affinity in ((plain, False), (near, True)):
                    results.append(
                        run(asked, replicas=REPLICAS, cache_blocks=CACHE_BLOCKS, with_affinity=with_affinity)
                    )
            shown = [
                f"{median(r.hit_rate for r in each):6.1%} {median(r.p50 for r in each) * 1e3:7.0f} "
                f"{median(r.p99 for r in each) * 1e3:7.0f}"
                for each in (plain, near)
            ]
            gain = [b.hit_rate - a.hit_rate for a, b in zip(plain, near, strict=True)]
            ratio = [b.p99 / a.p99 for a, b in zip(plain, near, strict=True)]
            print(
                f"{load:5.0%} {hot:5.0%} | {shown[0]} | {shown[1]} | {median(gain):6.1%} | "
                f"{median(ratio):6.2f} {max(ratio):6.2f}"
            )
            gains += gain
            ratios += ratio
    print(
        f"over all {len(ratios)} traces: hits {mean(gains):+.1%} (least {min(gains):+.1%}), "
        f"p99 {median(ratios):.2f} of least outstanding (worst {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
