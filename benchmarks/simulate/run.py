"""Fault schedules by the thousand: `python -m benchmarks.simulate.run --count 10000`, or `--seed N` to replay one.

Prints how many schedules ended as wished, simulated time against real time, and each seed that broke a promise.
"""

import argparse
import gc
import itertools
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

SHOWN = 250  # schedules between two lines that tell how far it is
COLLECTED = 8  # schedules of one process between two collections of what they left
_DONE = itertools.count(1)


def begin() -> None:
    """Django on an empty database in memory, once a process."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # one thread: the loop itself reads the database
    warnings.simplefilter("ignore")
    import django
    from django.test.utils import setup_databases, setup_test_environment

    django.setup()
    setup_test_environment()
    setup_databases(0, False)
    gc.collect()
    gc.freeze()
    gc.disable()  # what a schedule leaves is collected between two


def run(seed: int) -> tuple[int, float, str, list[str]]:
    """The seed, its simulated seconds, what it broke, and what happened."""
    from tests.simulate.schedule import story
    from tests.simulate.world import world

    with world(seed) as each:
        broken = ""
        try:
            each.run(story)
        except Exception as error:
            broken = f"{type(error).__name__}: {error}"
        seconds, log = each.loop.time() - 1000, each.log
    if next(_DONE) % COLLECTED == 0:  # by its own count: the seeds of one process may all be odd
        gc.collect()
    return seed, seconds, broken, log


def replay(seed: int) -> int:
    begin()
    _, seconds, broken, log = run(seed)
    from fleet.models import Event

    print(*log, sep="\n")
    print("events:", *Event.objects.order_by("id").values_list("text", flat=True), sep="\n  ")
    print(f"seed {seed}: {seconds:.0f} simulated seconds; {broken or 'as wished'}")
    return bool(broken)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, help="replay one, and show what happened")
    return parser


def main() -> int:
    args = parser().parse_args()
    if args.seed is not None:
        return replay(args.seed)
    began = time.monotonic()
    simulated, broken = 0.0, 0
    with ProcessPoolExecutor(args.processes, initializer=begin) as pool:
        tasks: list[Any] = [pool.submit(run, seed) for seed in range(args.first, args.first + args.count)]
        for done, task in enumerate(as_completed(tasks), 1):
            seed, seconds, what, _ = task.result()
            simulated += seconds
            if what:
                broken += 1
                print(f"seed {seed}: {what}", flush=True)
            if done % SHOWN == 0:
                print(f"{done} schedules, {broken} broken", flush=True)
    real = time.monotonic() - began
    print(f"{args.count} schedules, {broken} broken; {simulated:.0f} s simulated, {simulated / real:.0f} x real time")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
