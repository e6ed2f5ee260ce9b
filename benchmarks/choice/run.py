"""Least outstanding beside prefix affinity on synthetic traces.

python -m benchmarks.choice.run [--seeds N]
"""

import argparse
from statistics import mean, median

from benchmarks.choice.simulation import SLOTS, Result, run, trace

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
    print("all traces of a kind together; the p99 of one alone differs by chance, with any choice, by a fifth")
    print(f"{'':11} | {'least outstanding':^22} | {'with affinity':^22} | {'hits':>6} | p99 ratio")
    print(f"{'load':>5} {'hot':>5} | {columns} | {columns} | {'gain':>6} |    all  worst")
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
            pools = [Result.pooled(each) for each in (plain, near)]
            shown = [f"{each.hit_rate:6.1%} {each.p50 * 1e3:7.0f} {each.p99 * 1e3:7.0f}" for each in pools]
            gain, ratio = pools[1].hit_rate - pools[0].hit_rate, pools[1].p99 / pools[0].p99
            worst = max(b.p99 / a.p99 for a, b in zip(plain, near, strict=True))
            print(f"{load:5.0%} {hot:5.0%} | {shown[0]} | {shown[1]} | {gain:6.1%} | {ratio:6.2f} {worst:6.2f}")
            gains.append(gain)
            ratios.append(ratio)
    print(
        f"over all {len(ratios)} kinds: hits {mean(gains):+.1%} (least {min(gains):+.1%}), "
        f"p99 {median(ratios):.2f} of least outstanding (worst {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
