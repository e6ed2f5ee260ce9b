"""Engines found by the mark in their environment, when the ledger does not know them."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from agent_client.protocol.messages import ShardReport
from agent_client.protocol.states import ShardState
from agent_client.supervisor import processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The leader of an engine's group, which is the process that was spawned."""

    shard: str
    epoch: int
    pid: int
    start_time: int
    port: int

    def endpoint(self, address: str) -> str:
        return f"http://{f'[{address}]' if ':' in address else address}:{self.port}"

    def report(self, address: str, state: ShardState = ShardState.LOADING) -> ShardReport:
        """Until the server has said what it is to be, all that is known: something of this shard runs."""
        head = self.shard.endswith("/0") and self.port
        return ShardReport(
            shard=self.shard,
            epoch=self.epoch,
            state=state,
            detail="found by its mark: the agent's ledger does not tell of it",
            endpoint=self.endpoint(address) if head else None,
            pids=(self.pid,),
        )


def find(marked: Mapping[int, str]) -> dict[str, Found]:
    """Label → leader, out of all processes that carry the mark; the oldest where a child leads a group of its own."""
    out: dict[str, Found] = {}
    for pid, label in sorted(marked.items()):
        shard, _, epoch = label.rpartition("@")
        with contextlib.suppress(ProcessLookupError, ValueError):
            if not shard or os.getpgid(pid) != pid:
                continue
            started = processes.start_time(pid)
            known = out.get(label)
            if started is None or (known is not None and known.start_time <= started):
                continue
            port = int(processes.variable(pid, processes.PORT_VARIABLE) or 0)
            if not port:
                continue  # something that it started, without its environment
            out[label] = Found(shard=shard, epoch=int(epoch), pid=pid, start_time=started, port=port)
    return out
