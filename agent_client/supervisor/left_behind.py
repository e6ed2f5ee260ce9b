"""What an earlier agent left, sorted before anything is done with it: what lives has the last word.

The ledger tells more of it, but it may be an older copy that was put back, another agent's, or of another version. So
an entry counts as alive only where a living process bears it out, and a process that lives beside an entry of another
epoch is held back until the server has said what is wanted: then it is adopted or ended, and never joined by a second.
"""

import contextlib
import os
from dataclasses import dataclass

from agent_client.engines import internal_ports
from agent_client.ledger import Entry
from agent_client.profile import ProfileError, parse_profile
from agent_client.protocol.codec import MessageError, read_part
from agent_client.protocol.messages import ShardSpec
from agent_client.supervisor import processes
from agent_client.supervisor.attempt import Held
from agent_client.supervisor.choosing import log_path
from agent_client.supervisor.found import Found, find
from agent_client.supervisor.ground import Ground


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    known: tuple[tuple[Held, bool], ...]  # of the ledger; whether it lives
    found: dict[str, Found]  # "shard@epoch" → what lives and is not in the ledger, or not as it is


def look(ground: Ground) -> LeftBehind:
    """Corrects and prunes the ledger's entries by what lives. Blocks: for a thread."""
    members = ground.members()
    found = find(members)
    entries = list(ground.ledger.entries.values())
    for entry in entries:
        if _borne_out(entry, ground, members):
            port = found[entry.label].port if entry.label in found else 0
            found[entry.label] = Found(
                shard=entry.shard,
                epoch=entry.epoch,
                pid=entry.pid,
                start_time=entry.start_time,
                port=port or entry.port,
            )
    with contextlib.suppress(OSError):
        for each in found.values():
            ground.ledger.see(each.shard, each.epoch)
    known = []
    for entry in entries:
        there = [each for each in found.values() if each.shard == entry.shard]
        held = _held(entry, ground)
        if held is not None and not there:
            _disown(entry, ground)
            known.append((held, False))
        elif held is not None and [each.epoch for each in there] == [entry.epoch]:
            _correct(held, found.pop(entry.label), ground)
            known.append((held, True))
        elif entry.label not in found:
            ground.ledger.forget(entry.shard, entry.epoch)
    return LeftBehind(known=tuple(known), found=found)


def _borne_out(entry: Entry, ground: Ground, members: dict[int, str]) -> bool:
    """Whether its process lives. One that tells nothing, as its environment is gone or can't be read, is believed."""
    if entry.boot_id != ground.boot_id or not processes.same_process(entry.pid, entry.start_time):
        return False
    if entry.pid in members:
        return members[entry.pid] == entry.label
    with contextlib.suppress(ProcessLookupError):
        leads = os.getpgid(entry.pid) == entry.pid
        return leads and not processes.variable(entry.pid, processes.STATE_VARIABLE)
    return False


def _held(entry: Entry, ground: Ground) -> Held | None:
    """None: written by another version. What it names to be read, cut or killed must be ours, whatever it says."""
    try:
        spec = read_part(ShardSpec, entry.spec)
        profile = parse_profile(spec.profile)
    except (MessageError, ProfileError):
        return None
    entry.log_path = str(log_path(ground, entry.shard, entry.epoch))
    entry.cgroup = ground.cgroups.known(entry.cgroup, entry.label) if ground.cgroups is not None else ""
    return Held(shard=entry.shard, epoch=entry.epoch, spec=spec, profile=profile, entry=entry)


def _disown(entry: Entry, ground: Ground) -> None:
    """Of a process that is gone the number stays, for the kernel's log may name it; a stranger's is nothing to us."""
    if entry.boot_id != ground.boot_id or processes.start_time(entry.pid) is not None:
        entry.pid = entry.start_time = 0


def _correct(held: Held, there: Found, ground: Ground) -> None:
    """An older copy may know an earlier try of the same epoch, or none: the agent died between spawn and record."""
    entry = held.entry
    assert entry is not None
    if (entry.pid, entry.start_time) == (there.pid, there.start_time):
        return
    if entry.pid or entry.port != there.port:  # of another try
        entry.ready = False
        entry.port, entry.endpoint = there.port, there.endpoint(ground.config.mgmt_addr)
        first = there.port + 1
        entry.internal_ports = tuple(range(first, first + internal_ports(held.profile)))
    entry.pid, entry.start_time, entry.boot_id = there.pid, there.start_time, ground.boot_id
