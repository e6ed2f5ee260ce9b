"""What the supervisor holds of one attempt beside its state: order, process, output, and what it left behind."""

import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_client.engines import Launch, Probed, Readiness
from agent_client.ledger import Entry
from agent_client.machine import Attempt, Limits
from agent_client.profile import EngineKind, Profile
from agent_client.protocol.codec import MessageError, read_part
from agent_client.protocol.messages import ShardReport, ShardSpec
from agent_client.supervisor import cgroup, processes, traces
from agent_client.supervisor.ground import Ground


@dataclass(slots=True, kw_only=True)
class Held:
    shard: str
    epoch: int
    spec: ShardSpec
    profile: Profile
    entry: Entry | None = None
    child: "subprocess.Popen[bytes] | None" = None
    exit_code: int | None = None
    exit_signal: int | None = None
    tail: tuple[str, ...] = ()
    record: dict[str, Any] | None = None
    probed: Probed | None = None  # the last question; None: none was asked yet
    running: int | None = None
    waiting: int | None = None
    pids: set[int] = field(default_factory=set)  # every process that was ever seen of it
    children: dict[int, int] = field(default_factory=dict)  # every descendant that was ever seen → its start time
    shared_memory: set[str] = field(default_factory=set)

    @property
    def readiness(self) -> Readiness:
        try:
            return read_part(Readiness, self.entry.readiness) if self.entry else Readiness()
        except MessageError:  # written by another version
            return Readiness()

    @property
    def label(self) -> str:
        return f"{self.shard}@{self.epoch}"

    @property
    def cgroup(self) -> Path | None:
        """Its own, where one was permitted."""
        return Path(self.entry.cgroup) if self.entry is not None and self.entry.cgroup else None

    def see(self, ground: Ground) -> list[int]:
        """The processes that are there now, and what must be looked for when they are gone. Reads /proc."""
        in_cgroup = cgroup.pids(self.cgroup) if self.cgroup is not None else set()
        ours = {pid for pid, label in ground.members().items() if label == self.label}
        self.follow_children(ours)
        children = {pid for pid, started in self.children.items() if processes.same_process(pid, started)}
        found = sorted(in_cgroup | ours | children)
        self.pids.update(found)
        self.shared_memory.update(processes.shared_memory(found))
        return found

    def follow_children(self, parents: Iterable[int] = ()) -> None:
        """Who is a child now is known for ever, wherever it goes; a parent that is gone is nobody's any more."""
        first = [self.entry.pid] if self.entry and processes.same_process(self.entry.pid, self.entry.start_time) else []
        found = {pid: started for pid, started in self.children.items() if processes.same_process(pid, started)}
        for pid in (*first, *tuple(found), *parents):
            found |= traces.descendants(pid)
        self.children = found  # whole: another thread may be reading the one before

    def report(self, attempt: Attempt, now: float) -> ShardReport:
        entry = None if attempt.ended else self.entry
        return ShardReport(
            shard=self.shard,
            epoch=self.epoch,
            state=attempt.shown,
            code=attempt.code,
            detail=attempt.detail,
            hint=attempt.hint,
            endpoint=entry.endpoint if entry and self.spec.rank == 0 else None,
            pids=(entry.pid,) if entry and entry.pid else (),
            phase=attempt.phase,
            progress=attempt.progress,
            exit_code=self.exit_code,
            exit_signal=self.exit_signal,
            tail=self.tail,
            running=None if attempt.ended else self.running,
            waiting=None if attempt.ended else self.waiting,
            stalled_seconds=None if attempt.stalled_at is None else now - attempt.stalled_at,
            record=self.record,
        )


def limits(template: Limits, profile: Profile, spec: ShardSpec) -> Limits:
    """SGLang above rank 0 only warns on TERM: it ends when its first rank has ended, or by KILL after the grace."""
    values = asdict(template)
    values |= {"start": float(profile.start_timeout_seconds), "grace": float(profile.stop_grace_seconds)}
    values |= {"answers": spec.rank == 0}
    values |= {"terminates": spec.rank == 0 or profile.engine is not EngineKind.SGLANG}
    return Limits(**values)


def spawn(
    held: Held, launch: Launch, *, mark: str, base_env: Mapping[str, str], cgroups: cgroup.Cgroups | None
) -> None:
    """Start the process in a session of its own, its output to a file: it outlives the agent. Raises OSError."""
    entry = held.entry
    assert entry is not None
    env = dict(base_env) | {variable.name: variable.value for variable in launch.env}
    env |= {processes.SHARD_VARIABLE: held.label, processes.STATE_VARIABLE: mark}
    env |= {processes.PORT_VARIABLE: str(entry.port)}
    env["SPT_NOENV"] = "1"  # else setproctitle, which engines use, writes over the environment that tells whose it is
    Path(entry.log_path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    entry.cgroup = cgroups.make(held.label) if cgroups is not None else ""
    argv = cgroup.entering(entry.cgroup, launch.argv, env.get("PATH")) if entry.cgroup else launch.argv
    handle = os.open(entry.log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        held.child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            env=env,
            start_new_session=True,
            cwd=str(Path(entry.log_path).parent),
        )
    finally:
        os.close(handle)
    entry.pid = held.child.pid
    entry.start_time = processes.start_time(entry.pid) or 0
    entry.argv_hash = hashlib.sha256("\0".join(launch.argv).encode()).hexdigest()
