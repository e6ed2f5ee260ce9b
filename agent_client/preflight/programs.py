"""Which engines this node can run and may run, and by which command."""

import difflib
import importlib.util
import shutil
import sys
from collections.abc import Iterator

from agent_client.config import AgentConfig
from agent_client.engines import DEFAULT_COMMANDS, sglang
from agent_client.installed import Installed, packaged_version
from agent_client.profile import EngineKind, Problem, Profile
from agent_client.protocol.messages import ShardSpec
from agent_client.protocol.states import FailureCode


def command_for(config: AgentConfig, kind: EngineKind) -> tuple[str, ...] | None:
    """The command by which this node runs an engine; () for the built-in echo; None when it can't or may not."""
    engines = config.policy.engines
    if engines is not None and kind not in engines:
        return None
    if engines is not None and (command := engines[kind].command):
        return command if shutil.which(command[0]) else None
    if kind is EngineKind.ECHO:
        return ()
    if kind is EngineKind.CUSTOM:
        return None if engines is None else ()
    if kind is EngineKind.SGLANG:  # it has no program of its own: it is a package of some Python
        return (sys.executable, *sglang.MODULE) if importlib.util.find_spec("sglang") else None
    default = DEFAULT_COMMANDS.get(kind)
    return default if default and shutil.which(default[0]) else None


def named_command(config: AgentConfig, kind: EngineKind) -> tuple[str, ...]:
    """What would be run if it were there: the node's own word goes before the adapter's default, which is ()."""
    policy = (config.policy.engines or {}).get(kind)
    return command_for(config, kind) or (policy.command if policy and policy.command else ())


def available_engines(config: AgentConfig) -> dict[str, str]:
    """Engine kind → version ("" where its package does not tell), as registration reports them."""
    commands = {kind: command_for(config, kind) for kind in EngineKind}
    return {kind.value: packaged_version(kind, command) for kind, command in commands.items() if command is not None}


def engine_warnings(config: AgentConfig) -> tuple[str, ...]:
    """What agent.yaml lists and this node can't run: otherwise it would only be missing among the node's engines."""
    return tuple(_unrunnable(config))


def _unrunnable(config: AgentConfig) -> Iterator[str]:
    for name in config.policy.engines or {}:
        where = f"policy.engines.{name}"
        if name not in list(EngineKind):
            near = difflib.get_close_matches(name, list(EngineKind), n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(EngineKind)}"
            yield f"agent.yaml: {where} is no engine; {hint}"
        elif command_for(config, EngineKind(name)) is None:
            program = _program(config, EngineKind(name))
            hint = f"install it, or correct {where}.command"
            yield f"agent.yaml: the program {program} of {where} is not on this node, so it runs none of {name}; {hint}"


def _program(config: AgentConfig, kind: EngineKind) -> str:
    """What is looked for, whether it is there or not."""
    policy = (config.policy.engines or {}).get(kind)
    return ((policy.command if policy else None) or DEFAULT_COMMANDS.get(kind) or (kind.value,))[0]


def ask_engines(config: AgentConfig, installed: Installed) -> None:
    """Begin to ask every engine for its options, so that the first start finds them known."""
    for kind in EngineKind:
        if (command := command_for(config, kind)) is not None:
            installed.known(kind, command, wait_seconds=0)


def problems(config: AgentConfig, profile: Profile, spec: ShardSpec) -> Iterator[Problem]:
    """The engine, and the arguments that the node's owner allows it."""
    if command_for(config, profile.engine) is None:
        yield _no_engine(config, profile, spec)
    allowed = config.policy.extra_args
    for arg in profile.extra_args if allowed is not None else ():
        name = arg.split("=", 1)[0]
        if arg.startswith("-") and name not in (allowed or ()):
            text = f"cannot start {spec.replica}: this node's policy does not allow the argument {name}"
            yield _problem(FailureCode.POLICY_REFUSED, "extra_args", text, "list it under policy.extra_args")


def _no_engine(config: AgentConfig, profile: Profile, spec: ShardSpec) -> Problem:
    kind, engines = profile.engine, config.policy.engines
    if engines is not None and kind not in engines:
        text = f"cannot start {spec.replica}: this node's policy allows {', '.join(engines) or 'nothing'}, not {kind}"
        return _problem(FailureCode.POLICY_REFUSED, "engine", text, "list it under policy.engines, or use another node")
    if kind is EngineKind.CUSTOM:
        text = f"cannot start {spec.replica}: custom engines run only where agent.yaml lists them"
        return _problem(FailureCode.POLICY_REFUSED, "engine", text, "policy: {engines: {custom: {}}}")
    program = _program(config, kind)
    text = f"cannot start {spec.replica}: the program {program} of engine {kind} is not on this node"
    return _problem(FailureCode.ENGINE_MISSING, "engine", text, f"install it, or set policy.engines.{kind}.command")


def _problem(code: FailureCode, field: str, text: str, hint: str) -> Problem:
    return Problem(code=code.value, field=f"profile.{field}", text=text, hint=hint)
