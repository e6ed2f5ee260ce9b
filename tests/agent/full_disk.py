"""A node whose disk of 1 MB fills while an engine serves: `python -m tests.agent.full_disk FOLDER`, in a namespace of
its own, with the disk mounted at FOLDER. Prints one JSON line of what was seen.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path

from agent_client import preflight
from agent_client.ledger import Ledger
from agent_client.protocol.messages import ShardReport
from agent_client.protocol.states import ShardState
from tests.agent.test_agent import Node, order
from tests.agent.test_supervision import post, until

WORDS = " ".join(f"w{i}" for i in range(12))


def room(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def heard(endpoint: str) -> str:
    """The words of a whole stream."""
    words = []
    with post(endpoint, WORDS, stream=True) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                words += [choice["delta"].get("content") or "" for choice in choices]
    return "".join(words)


async def other(node: Node, epoch: int, state: ShardState) -> ShardReport:
    """What comes of a start beside the one that serves."""
    await node.supervisor.start(dataclasses.replace(order(epoch), shard="other/0"))
    return await until(node, lambda told: (told.shard, told.epoch, told.state) == ("other/0", epoch, state))


async def fill(folder: Path) -> None:
    """Until nothing frees any room any more: an output that is bounded gives some back."""
    quiet = 0
    with (folder / "filler").open("ab", buffering=0) as file:
        while quiet < 10:
            quiet += 1
            with contextlib.suppress(OSError):
                while file.write(b"x" * 512):
                    quiet = 0
            await asyncio.sleep(0.1)


async def run(folder: Path) -> dict[str, object]:
    node = Node(folder)
    node.config = dataclasses.replace(node.config, log_bytes=65_536)
    looked_at = [folder]
    node.tools["preflight"] = lambda profile, spec: (
        preflight.check(node.config, profile, spec, {}, ()).refusal if looked_at else None
    )
    node.again()
    try:
        return await story(node, folder, looked_at)
    finally:
        await node.supervisor.close(stop_engines=True)


async def story(node: Node, folder: Path, looked_at: list[Path]) -> dict[str, object]:
    # Its output is without end, so its own writes fail too.
    await node.supervisor.start(order(extra_args=["--flood", "--chunk-delay", "0.5"]))
    ready = await node.until(ShardState.READY)
    endpoint = ready.endpoint or ""
    stream = asyncio.create_task(asyncio.to_thread(heard, endpoint))
    await fill(folder)
    seen: dict[str, object] = {"left": room(folder), "under_way": not stream.done()}
    seen["refused"] = told(await other(node, 1, ShardState.FAILED))
    looked_at.clear()  # it has filled since it was looked at
    seen["unwritable"] = told(await other(node, 2, ShardState.FAILED))
    seen["stream"] = await stream == WORDS
    seen["answered"] = await asyncio.to_thread(heard, endpoint) == WORDS
    seen["remembered"] = sorted(Ledger(folder / "ledger.json").entries)
    (folder / "filler").unlink()
    seen["again"] = (await other(node, 3, ShardState.READY)).state
    seen["both"] = sorted(Ledger(folder / "ledger.json").entries)
    (first,) = [report for report in node.supervisor.reports() if report.shard == "uid/0"]
    seen["first"] = [first.state, first.pids == ready.pids]
    return seen


def told(report: ShardReport) -> list[str]:
    return [report.code, report.detail, report.hint]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(Path(sys.argv[1])))))
