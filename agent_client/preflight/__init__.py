"""Checks before a launch: what is wrong is said in under a second, with the number that is wrong.

Nothing here waits for long: the caller has looked at the cards, a model's files have a limit, an engine's own help
is taken as far as it is known by now.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_client.config import AgentConfig
from agent_client.engines import Launch, Origin, PlanError, internal_ports, plan
from agent_client.engines.help_text import Known, unknown_flags
from agent_client.installed import Installed
from agent_client.launching import launch_spec
from agent_client.preflight import cards, models, node, programs
from agent_client.preflight.cards import sick as sick_card
from agent_client.preflight.cards import too_old
from agent_client.preflight.ports import Ports
from agent_client.preflight.programs import ask_engines, available_engines, command_for, engine_warnings, named_command
from agent_client.profile import Problem, Profile, Refusal
from agent_client.profile.memory import MemoryEstimate
from agent_client.protocol.messages import ShardSpec
from agent_client.protocol.states import FailureCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """`launch`: what would run, with the first ports of the range; None when no command can be made."""

    problems: tuple[Problem, ...]
    launch: Launch | None
    estimate: MemoryEstimate
    warnings: tuple[Problem, ...] = ()

    @property
    def refusal(self) -> Refusal | None:
        return Refusal(problems=self.problems) if self.problems else None


def check(
    config: AgentConfig,
    profile: Profile,
    spec: ShardSpec,
    inventory: Mapping[str, Any],
    owned_pids: Iterable[int],
    *,
    installed: Installed | None = None,
) -> Checked:
    """Everything that stands against launching this shard here, the most decisive first."""
    found = list(programs.problems(config, profile, spec))
    known = _known(config, profile, installed)
    launch, refused = _plan(config, profile, spec)
    found += refused
    if launch is not None and known is not None:
        found += _flags(profile, launch, known)
    path, against = models.find(config, profile, spec)
    found += against
    model = models.read(profile, path)
    found += model.problems
    found += cards.problems(profile, spec, inventory, set(owned_pids))
    gpus = cards.given(spec, inventory)
    verdict = models.verdict(profile, spec, model.facts, gpus, known.numbers if known else None)
    said = {problem.code for problem in refused}  # an adapter and a rule may find the same
    if any(problem.code == FailureCode.GPU_BUSY for problem in found):
        said.add(FailureCode.MEMORY_TAKEN.value)
    found += [problem for problem in verdict.problems if problem.code not in said]
    found += node.problems(config, profile, spec, inventory)
    return Checked(problems=tuple(found), launch=launch, estimate=verdict.estimate, warnings=verdict.warnings)


def _known(config: AgentConfig, profile: Profile, installed: Installed | None) -> Known | None:
    command = command_for(config, profile.engine)
    return installed.known(profile.engine, command) if installed is not None and command is not None else None


def _plan(config: AgentConfig, profile: Profile, spec: ShardSpec) -> tuple[Launch | None, tuple[Problem, ...]]:
    first = config.policy.ports[0]
    ports = range(first, first + 1 + internal_ports(profile))
    command = named_command(config, profile.engine)
    try:
        return plan(launch_spec(config, spec, profile, ports=ports, command=command)), ()
    except PlanError as error:
        return None, error.problems


def _flags(profile: Profile, launch: Launch, known: Known) -> list[Problem]:
    """Those of the profile by their names; of llmgw's own, that the installed version is another than they need."""
    extra = profile.extra_args
    own = launch.words[: len(launch.words) - len(extra)]
    flags = [word.text for word in own if word.text.startswith("--") and word.origin is not Origin.NODE]
    return [*unknown_flags(extra, known, set_by_user=True), *unknown_flags(flags, known, set_by_user=False)]


__all__ = [
    "Checked",
    "Ports",
    "ask_engines",
    "available_engines",
    "check",
    "command_for",
    "engine_warnings",
    "named_command",
    "sick_card",
    "too_old",
]
