"""Least outstanding beside prefix affinity on synthetic traces: `python -m benchmarks.choice.run`."""

from benchmarks.choice.simulation import SLOTS, run, trace

REPLICAS = 4
CACHE_BLOCKS = 6000


def main() -> None:
    capacity = REPLICAS * SLOTS  # requests a second, at about one second each
    columns = f"{'hits':>6} {'p50 ms':>7} {'p99 ms':>7}"
    print(f"{'':11} | {'least outstanding':^22} | {'with affinity':^22} |")
    print(f"{'load':>5} {'hot':>5} | {columns} | {columns} | p99 ratio")
    for load in (0.3, 0.6, 0.8, 0.95):
        for hot in (0.1, 0.5, 0.9):
            asked = trace(1, per_second=load * capacity, seconds=120, hot=hot)
            plain, near = (
                run(asked, replicas=REPLICAS, cache_blocks=CACHE_BLOCKS, with_affinity=a) for a in (False, True)
            )
            shown = [f"{r.hit_rate:6.1%} {r.p50 * 1e3:7.0f} {r.p99 * 1e3:7.0f}" for r in (plain, near)]
            print(f"{load:5.0%} {hot:5.0%} | {shown[0]} | {shown[1]} | {near.p99 / plain.p99:5.2f}")


if __name__ == "__main__":
    main()
