"""Why an engine failed, out of what it wrote and what the node knows, or why it was not started; keeps tail and record.
Blocks: for a thread.
"""

from dataclasses import replace
from pathlib import Path

from agent_client.engines import PlanError, Probed, internal_ports, plan
from agent_client.launching import launch_spec, read_secrets
from agent_client.machine import Failure, Why
from agent_client.profile import Refusal
from agent_client.supervisor import cgroup, evidence
from agent_client.supervisor.attempt import Held
from agent_client.supervisor.ground import Ground


def output_of(
    ground: Ground, held: Held, most_bytes: int = evidence.OUTPUT_BYTES, until: int | None = None
) -> list[str]:
    """Its last lines, without secrets."""
    if held.entry is None or not held.entry.log_path:
        return []
    lines = evidence.read_output(Path(held.entry.log_path), most_bytes=most_bytes, until=until)
    return evidence.redacted(lines, _secrets(ground, held))


def explain(ground: Ground, held: Held, why: Why, seconds: float, until: int | None) -> Failure:
    """`until`: where its output ended before our own signals made noise."""
    lines, replica = output_of(ground, held, until=until), held.spec.replica
    code, signal_ = held.exit_code, held.exit_signal
    entry, tools = held.entry, ground.tools
    oom = why is Why.EXITED and _oom_killed(held, ground)
    held.tail = evidence.fitting(lines[-evidence.TAIL_LINES :], evidence.TAIL_TOLD)
    held.record = evidence.attempt_record(
        argv=entry.argv if entry else (),
        env=entry.env if entry else {},
        surroundings=tools.surroundings(held.spec, held.profile),
        head=evidence.redacted(evidence.read_head(Path(entry.log_path)), _secrets(ground, held)) if entry else (),
        lines=lines,
        how={"oom_killed": oom, "seconds": round(seconds, 1)},
    )
    if why is Why.NOT_READY:
        failure = evidence.failure_of_start(replica, lines, seconds, _told(held, ground))
    elif why is Why.CLOSED:
        failure = evidence.failure_of_port(replica, lines, entry.port if entry else 0)
    elif why is Why.HUNG:
        failure = evidence.failure_of_silence(replica, lines, seconds, held.running)
    else:
        seen = code is not None or signal_ is not None
        failure = evidence.failure_of_exit(
            replica, lines, exit_code=code, exit_signal=signal_, seen=seen, oom_killed=oom
        )
    card = tools.sick_card(held.spec)
    return failure if card is None else evidence.of_card(replica, failure, *card)


def refuse(ground: Ground, held: Held, refusal: Refusal) -> Failure:
    """One sentence for the list; all that stands against it in the record."""
    secrets = _secrets(ground, held)
    held.record = {"problems": evidence.problems_told(refusal.problems, secrets)}
    (detail,) = evidence.redacted([refusal.detail], secrets)
    (hint,) = evidence.redacted([refusal.hint], secrets)
    return Failure(code=refusal.code, detail=detail, hint=hint)


def _told(held: Held, ground: Ground) -> Probed | None:
    """What a question brought at last, without secrets."""
    if held.probed is None:
        return None
    (told,) = evidence.redacted([held.probed.told], _secrets(ground, held))
    return replace(held.probed, told=told)


def _oom_killed(held: Held, ground: Ground) -> bool:
    """By its own cgroup's count, which every user may read, or by the kernel's log."""
    if held.cgroup is not None and cgroup.oom_kills(held.cgroup):
        return True
    return ground.tools.oom_killed(held.pids | ({held.entry.pid} if held.entry else set()))


def _secrets(ground: Ground, held: Held) -> list[str]:
    """All that is hidden where command and environment are shown: an engine may print either."""
    told = [held.spec.engine_key or "", *read_secrets(ground.config).values()]
    first = ground.config.policy.ports[0]
    ports = range(first, first + 1 + internal_ports(held.profile))
    try:
        command = ground.tools.command(held.profile)
        launch = plan(launch_spec(ground.config, held.spec, held.profile, ports=ports, command=command))
    except PlanError:
        return told
    words = [word.text for word in launch.words if word.secret]
    values = [variable.value for variable in launch.env if variable.secret]
    return [*told, *values, *(word.partition("=")[2] or word for word in words)]
