"""Port and command of an attempt, remembered before the spawn: a crash in between must not start it twice."""

from dataclasses import asdict
from pathlib import Path

from agent_client.engines import Launch, PlanError, internal_ports, plan
from agent_client.launching import launch_spec, no_ports
from agent_client.ledger import Entry
from agent_client.machine import Failure
from agent_client.profile import Refusal
from agent_client.protocol.codec import plain_part
from agent_client.protocol.states import FailureCode
from agent_client.supervisor.attempt import Held
from agent_client.supervisor.explaining import refuse
from agent_client.supervisor.ground import Ground


def choose(ground: Ground, held: Held) -> Launch | Failure:
    """Sets the entry. One at a time: two must not choose one port. Blocks: for a thread."""
    spec = held.spec
    if (busy := _busy(ground, held)) is not None:
        return busy
    taken = {port for entry in list(ground.ledger.entries.values()) for port in entry.ports}
    count = 1 + internal_ports(held.profile)
    ports = ground.tools.free_ports(taken, count)
    if ports is None:
        code, text, hint = no_ports(spec, ground.config.policy.ports, count)
        return Failure(code=code, detail=text, hint=hint)
    try:
        command = ground.tools.command(held.profile)
        launch = plan(launch_spec(ground.config, spec, held.profile, ports=ports, command=command))
    except PlanError as error:
        return refuse(ground, held, Refusal(problems=error.problems))
    address = f"[{ground.config.mgmt_addr}]" if ":" in ground.config.mgmt_addr else ground.config.mgmt_addr
    entry = Entry(
        shard=held.shard,
        epoch=held.epoch,
        boot_id=ground.boot_id,
        port=ports[0],
        internal_ports=tuple(ports[1:]),
        spec=plain_part(spec),
        endpoint=f"http://{address}:{ports[0]}",
        log_path=str(log_path(ground, held.shard, held.epoch)),
        readiness=asdict(launch.readiness),
        argv=launch.shown_argv,
        env={variable.name: variable.shown for variable in launch.env},
    )
    try:
        ground.ledger.record(entry)
    except OSError as error:
        text = f"cannot start {spec.replica}: {ground.ledger.path} can't be written ({error.strerror})"
        return Failure(code=FailureCode.STATE_UNWRITABLE.value, detail=text, hint="free space on its disk")
    held.entry = entry
    held.exit_code = held.exit_signal = held.record = None
    held.tail = ()
    return launch


def _busy(ground: Ground, held: Held) -> Failure | None:
    """A card that another engine of ours was given and has not been seen to leave: who ordered this did not know."""
    for entry in list(ground.ledger.entries.values()):
        shared = sorted(set(held.spec.gpus) & set(entry.spec.get("gpus") or ()))
        if shared and entry.shard != held.shard:
            holder = f"{entry.spec.get('replica') or entry.shard} (epoch {entry.epoch})"
            text = f"cannot start {held.spec.replica}: GPU {shared[0]} is held by {holder}, which this node runs"
            hint = "it is free when that has ended; the control plane should have waited for it"
            return Failure(code=FailureCode.GPU_BUSY.value, detail=text, hint=hint)
    return None


def log_path(ground: Ground, shard: str, epoch: int) -> Path:
    return ground.config.state_dir / "logs" / f"{shard.replace('/', '-')}@{epoch}.log"
