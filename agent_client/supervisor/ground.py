"""What every engine of a node stands on: configuration, ledger, and the tools that app wires in."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_client.config import AgentConfig
from agent_client.engines import Probed, Readiness
from agent_client.ledger import Ledger
from agent_client.machine import Limits
from agent_client.profile import Profile, Refusal
from agent_client.protocol.messages import ShardReport, ShardSpec
from agent_client.supervisor import cgroup, processes, traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What an engine tells of itself; None where it tells nothing."""

    running: int | None = None
    waiting: int | None = None
    refused: bool = False  # nobody listens on its port
    moving: tuple[float, ...] | None = None  # equal in two looks: nothing was done in between


async def _nothing_foreseen(profile: Profile, spec: ShardSpec, replaces: str) -> None:
    return None


async def _as_it_is(profile: Profile, on_progress: Callable[[str, float | None], None]) -> Profile:
    return profile


def _nothing_held(gpus: tuple[str, ...]) -> str:
    return ""


def _nothing_known(spec: ShardSpec, profile: Profile) -> Mapping[str, Any]:
    return {}


def _no_sick_card(spec: ShardSpec) -> tuple[str, str] | None:
    return None


def _nobody() -> Collection[str]:
    return ()


def _not_killed(pids: Collection[int]) -> bool:
    return False


def _no_cgroups(mark: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTools:
    """What the supervisor needs of its siblings. Those that aren't coroutines may block and run in threads."""

    preflight: Callable[[Profile, ShardSpec], Refusal | None]
    #: The same ahead of time: as if what the named shard holds were free. It may take a while.
    foresee: Callable[[Profile, ShardSpec, str], Awaitable[Refusal | None]] = _nothing_foreseen
    command: Callable[[Profile], tuple[str, ...]]
    free_ports: Callable[[set[int], int], range | None]  # that many in a row, none of those taken
    probe: Callable[[str, Readiness, str, str | None], Awaitable[Probed]]
    load: Callable[[str, str | None], Awaitable[Figures]]
    #: A profile whose model is named by a hub id, with a path in its place; or code, sentence and hint.
    fetch: Callable[[Profile, Callable[[str, float | None], None]], Awaitable[Profile | tuple[str, str, str]]] = (
        _as_it_is
    )
    holders: Callable[[tuple[str, ...]], str] = _nothing_held  # what still lies on cards, in words
    surroundings: Callable[[ShardSpec, Profile], Mapping[str, Any]] = _nothing_known  # versions, state of the cards
    sick_card: Callable[[ShardSpec], tuple[str, str] | None] = _no_sick_card  # sentence and hint, by a fresh look
    oom_killed: Callable[[Collection[int]], bool] = _not_killed  # whether the kernel says so of one of these
    cgroups: Callable[[str], cgroup.Cgroups | None] = _no_cgroups  # by this agent's mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    config: AgentConfig
    ledger: Ledger
    boot_id: str
    mark: str  # of this agent's state folder, in the environment of everything it starts
    tools: NodeTools
    limits: Limits
    on_report: Callable[[ShardReport], None]
    labels: Callable[[], Collection[str]] = _nobody  # "shard@epoch" of all that is accounted for
    cgroups: cgroup.Cgroups | None = None  # None: none is permitted here
    choosing: asyncio.Lock = field(default_factory=asyncio.Lock)  # of a port, until it is in the ledger

    def members(self) -> dict[int, str]:
        """Every process that belongs to this agent's engines → its "shard@epoch". Reads /proc."""
        in_cgroups = self.cgroups.marked() if self.cgroups is not None else {}
        writers = traces.writers(self.config.state_dir / "logs")
        return in_cgroups | writers | processes.marked(self.mark)

    async def strays(self, known: Callable[[], Collection[str]], *, starting: str = "") -> list[int]:
        """Marked processes of no known label. Asked after the look: what was started since is known by then.

        `starting`: a shard that is about to start; nothing of it may live beside that, whatever accounts for it.
        """
        found = await asyncio.to_thread(self.members)
        labels = known()
        return sorted(
            pid for pid, label in found.items() if label not in labels or label.rpartition("@")[0] == starting
        )
