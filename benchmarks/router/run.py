"""The router beside its peers on one core, before one mock engine: `python -m benchmarks.router.run [--quick]`.

All routers run at once and are loaded in turn, round after round, so that a change of the machine's mood meets all of
them; a figure is the median of its rounds, a ratio the median of the ratios inside each round. See README.md here.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.router import table
from benchmarks.router.measure import Bench, Router, in_turn, start
from benchmarks.router.peers import PEERS, USUAL, Absent, Command, llmgw

DIRECT = "engine directly"


def main() -> None:
    args = _arguments()
    bench = Bench.here(quick=args.quick, seconds=1.0 if args.quick else args.seconds)
    commands: dict[str, Command | None] = {DIRECT: None, **{name: PEERS[name] for name in args.peers}}
    commands |= {f"llmgw in {path.name}": partial(llmgw, checkout=path.resolve()) for path in args.beside}
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        routers = []
        try:
            for name, command in commands.items():
                try:
                    routers.append(start(name, command, bench, Path(folder)))
                except Absent as absence:
                    print(absence, flush=True)
            _measure(routers, rounds=1 if args.quick else args.rounds, times=5 if args.quick else 20)
        finally:
            for router in routers:
                router.close()
    print(table.drawn(routers, direct=DIRECT))


def _measure(routers: list[Router], *, rounds: int, times: int) -> None:
    for number in range(rounds):
        print(f"round {number + 1} of {rounds} …", flush=True)
        for router in in_turn(routers, number):
            router.closed()
            router.streams()
    for router in routers:
        router.memory()
        router.leave(times)
        router.stall()


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.router.run", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round of short windows: to see that it runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a window")
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--peers", type=names, default=USUAL, metavar="NAME,…", help=f"of {', '.join(PEERS)}")
    parser.add_argument(
        "--beside", type=Path, action="append", default=[], metavar="DIR", help="another checkout of ours"
    )
    return parser


def _arguments() -> argparse.Namespace:
    args = parser().parse_args()
    if unknown := [name for name in args.peers if name not in PEERS]:
        parser().error(f"cannot measure {', '.join(unknown)}: known are {', '.join(PEERS)}")
    return args


if __name__ == "__main__":
    main()
