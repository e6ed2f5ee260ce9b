"""Agents that are killed at any moment while engines run: `python -m tests.agent.restarts FOLDER ROUNDS SEED`.

Each life is a fork that takes over what the ones before left, applies what is wanted now, and is killed with SIGKILL
after a random while. Before some, the ledger is torn, or an older copy of it is put back, as from a snapshot of the
disk. After each, what runs is counted from outside. Prints one JSON line.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from agent_client.identity import StateDirBusy, lock_state_dir
from agent_client.ledger import Ledger
from agent_client.protocol.messages import Desired, DesiredShard, ShardSpec
from agent_client.protocol.states import ShardState
from agent_client.supervisor import processes
from tests.agent.test_agent import Node

SHARDS = ("a/0", "b/0", "c/0")
LONGEST_LIFE = 0.4
MOST_COPIES = 30


class Fleet:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.node = Node(folder, ports=12)
        self.mark = self.node.supervisor._ground.mark
        self.epochs = dict.fromkeys(SHARDS, 1)
        self.ledger = folder / "ledger.json"
        self.copies: list[bytes] = []  # of the ledger, at random moments of earlier lives
        self.put_back = 0
        self.duplicates: list[str] = []
        self.lost: list[str] = []  # wanted before a life and after it, and not the same process any more
        self.adoptions = folder / "adoptions"

    def desired(self) -> Desired:
        shards = tuple(
            DesiredShard(
                shard=shard,
                epoch=epoch,
                spec=ShardSpec(
                    replica=shard,
                    served_names=("m",),
                    profile={"engine": "echo", "gpus": 0, "stop_grace_seconds": 1},
                    engine_key="CANARY",
                ),
            )
            for shard, epoch in self.epochs.items()
            if epoch
        )
        return Desired(revision=1, shards=shards)

    async def live(self, desired: Desired) -> None:
        node = self.node
        while True:  # as the agent does: what it had forked and not become its engine yet holds the lock
            with contextlib.suppress(StateDirBusy):
                lock_state_dir(self.folder)
                break
            await asyncio.sleep(0.001)
        node.again()
        begun = time.monotonic()
        before = len(Ledger(self.ledger).entries)
        await node.supervisor.adopt()
        took = time.monotonic() - begun
        if before:
            with self.adoptions.open("a") as file:
                file.write(f"{took}\n")
        await node.supervisor.apply(desired)
        await asyncio.sleep(3600)

    def round(self) -> None:
        if self.random.random() < 0.4:  # the control plane changed its mind meanwhile
            shard = self.random.choice(SHARDS)
            self.epochs[shard] += 1
        chance = self.random.random()
        if chance < 0.1:
            self.ledger.write_bytes(b"torn")
        elif chance < 0.3 and self.copies:
            self.put_back += 1
            self.ledger.write_bytes(self.random.choice(self.copies))
        before = self.leaders()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                asyncio.run(self.live(self.desired()))
            os._exit(1)
        life = self.random.random() * LONGEST_LIFE
        moment = self.random.random() * life
        time.sleep(moment)
        self.copy()
        time.sleep(life - moment)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.count(before)

    def copy(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.copies = [*self.copies, self.ledger.read_bytes()][-MOST_COPIES:]

    def leaders(self) -> dict[int, str]:
        return {pid: label for pid, label in processes.marked(self.mark).items() if _leads(pid)}

    def count(self, before: dict[int, str]) -> None:
        """Never two leaders of one shard, of whatever epochs; and what was and is wanted is not replaced."""
        leaders = self.leaders()
        shards = Counter(label.rpartition("@")[0] for label in leaders.values())
        self.duplicates += [shard for shard, number in shards.items() if number > 1]
        wanted = {f"{shard}@{epoch}" for shard, epoch in self.epochs.items()}
        self.lost += [label for pid, label in before.items() if label in wanted and leaders.get(pid) != label]

    async def settle(self) -> dict[str, object]:
        """A last life: everything wanted gets ready, then nothing is wanted any more."""
        node = self.node
        node.again()
        await node.supervisor.adopt()
        await node.supervisor.apply(self.desired())
        codes: Counter[str] = Counter()
        async with asyncio.timeout(60):
            while not all(report.state is ShardState.READY for report in node.supervisor.reports()):
                await asyncio.sleep(0.05)
                failed = [report for report in node.supervisor.reports() if report.state is ShardState.FAILED]
                for report in failed:  # as the control plane does: the next attempt
                    codes[report.code] += 1
                    self.epochs[report.shard] = report.epoch + 1
                if failed:
                    await node.supervisor.apply(self.desired())
        running = Counter(self.leaders().values())
        wanted = Counter(f"{shard}@{epoch}" for shard, epoch in self.epochs.items())
        await node.supervisor.apply(Desired(revision=2))
        await node.supervisor.close(stop_engines=True)
        took = sorted(map(float, self.adoptions.read_text().split()))
        return {
            "duplicates": self.duplicates,
            "lost": self.lost,
            "put_back": self.put_back,
            "as_wanted": running == wanted,
            "failed_at_the_end": codes,
            "orphans": len(processes.marked(self.mark)),
            "adoptions": len(took),
            "adopt_p50": round(took[len(took) // 2], 4),
            "adopt_p99": round(took[min(len(took) - 1, len(took) * 99 // 100)], 4),
        }


def _leads(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid) == pid
    return False


def main(folder: str, rounds: str, seed: str) -> int:
    fleet = Fleet(Path(folder), int(seed))
    try:
        for _ in range(int(rounds)):
            fleet.round()
        print(json.dumps(asyncio.run(fleet.settle())))
    finally:
        processes.signal_all(processes.marked(fleet.mark), signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
