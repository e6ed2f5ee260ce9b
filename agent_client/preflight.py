"""Checks before a launch: what is wrong is said in under a second, with the thing that is wrong."""

import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_client.config import AgentConfig
from agent_client.engines import DEFAULT_COMMANDS, sglang
from agent_client.profile import EngineKind, Profile
from agent_client.protocol.messages import ShardSpec
from agent_client.protocol.states import FailureCode

_GONE = "look for Xid 79 in dmesg, and at what nvidia-smi -L lists"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    code: FailureCode
    detail: str
    hint: str = ""


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


def available_engines(config: AgentConfig) -> dict[str, str]:
    """Engine kind → version ("" where it was not asked), as registration reports them."""
    return {kind.value: "" for kind in EngineKind if command_for(config, kind) is not None}


def check(
    config: AgentConfig, profile: Profile, spec: ShardSpec, inventory: Mapping[str, Any], owned_pids: Iterable[int]
) -> Refused | None:
    """The first thing that stands against launching this shard here, or None."""
    return (
        _engine(config, profile, spec)
        or _arguments(config, profile, spec)
        or _model(config, profile, spec)
        or _cards(profile, spec, inventory, set(owned_pids))
    )


def _engine(config: AgentConfig, profile: Profile, spec: ShardSpec) -> Refused | None:
    kind = profile.engine
    if command_for(config, kind) is not None:
        return None
    if config.policy.engines is not None and kind not in config.policy.engines:
        detail = (
            f"cannot start {spec.replica}: this node's policy allows {', '.join(config.policy.engines) or 'nothing'}"
        )
        return Refused(code=FailureCode.POLICY_REFUSED, detail=f"{detail}, not {kind}")
    if kind is EngineKind.CUSTOM:
        detail = f"cannot start {spec.replica}: custom engines run only where agent.yaml lists them"
        return Refused(code=FailureCode.POLICY_REFUSED, detail=detail, hint="policy: {engines: {custom: {}}}")
    policy = (config.policy.engines or {}).get(kind)
    command = (policy.command if policy else None) or DEFAULT_COMMANDS.get(kind) or (kind.value,)
    detail = f"cannot start {spec.replica}: the program {command[0]} of engine {kind} is not on this node"
    return Refused(
        code=FailureCode.ENGINE_MISSING, detail=detail, hint=f"install it, or set policy.engines.{kind}.command"
    )


def _arguments(config: AgentConfig, profile: Profile, spec: ShardSpec) -> Refused | None:
    allowed = config.policy.extra_args
    for arg in profile.extra_args if allowed is not None else ():
        name = arg.split("=", 1)[0]
        if arg.startswith("-") and name not in (allowed or ()):
            detail = f"cannot start {spec.replica}: this node's policy does not allow the argument {name}"
            return Refused(code=FailureCode.POLICY_REFUSED, detail=detail, hint="list it under policy.extra_args")
    return None


def _model(config: AgentConfig, profile: Profile, spec: ShardSpec) -> Refused | None:
    if not profile.model.startswith(("/", "~", "./")):
        if config.policy.model_roots and profile.model and profile.engine not in (EngineKind.ECHO, EngineKind.CUSTOM):
            detail = f"cannot start {spec.replica}: model {profile.model} is no path, and this node allows paths only"
            return Refused(code=FailureCode.POLICY_REFUSED, detail=detail)
        return None
    path = Path(profile.model).expanduser()
    try:
        real = path.resolve(strict=True)
    except OSError:
        detail = f"cannot start {spec.replica}: there is no {path} on this node"
        return Refused(code=FailureCode.MODEL_MISSING, detail=detail, hint="copy the model there, or name another path")
    roots = config.policy.model_roots
    if roots and not any(real.is_relative_to(root.resolve()) for root in roots):
        detail = f"cannot start {spec.replica}: {real} is outside this node's model_roots"
        return Refused(code=FailureCode.POLICY_REFUSED, detail=detail)
    if not os.access(real, os.R_OK) or (real.is_dir() and not any(real.iterdir())):
        detail = f"cannot start {spec.replica}: {real} can't be read or is empty"
        return Refused(code=FailureCode.MODEL_MISSING, detail=detail)
    return None


def _cards(profile: Profile, spec: ShardSpec, inventory: Mapping[str, Any], owned_pids: set[int]) -> Refused | None:
    if sick := sick_card(spec, inventory):
        text, hint = sick
        return Refused(code=FailureCode.GPU_MISSING, detail=f"cannot start {spec.replica}: {text}", hint=hint)
    known = _by_uuid(inventory)
    for uuid in spec.gpus:
        gpu = known[uuid]
        for process in gpu.get("processes") or []:
            # The inventory may be half a minute old: an engine of ours that ended since was not foreign in it.
            if process.get("foreign", True) and process.get("pid") not in owned_pids:
                who = f"{process.get('name') or 'a process'} (pid {process.get('pid')})"
                detail = f"cannot start {spec.replica}: GPU {gpu.get('index')} ({uuid}) is used by {who}"
                return Refused(code=FailureCode.GPU_BUSY, detail=detail, hint="end it, or cordon the card")
        if short := _memory(profile, gpu):
            detail = f"cannot start {spec.replica}: GPU {gpu.get('index')} ({uuid}) {short}"
            return Refused(code=FailureCode.GPU_BUSY, detail=detail, hint="free memory on the card, or ask for less")
    return None


def sick_card(spec: ShardSpec, inventory: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first of a shard's cards that is gone or that nothing may be placed on, and why; and a hint."""
    known = _by_uuid(inventory)
    for uuid in spec.gpus:
        gpu = known.get(uuid)
        if gpu is None:
            return f"GPU {uuid} is gone from this node", _GONE
        if not gpu.get("placeable", True):
            problem = next(iter(gpu.get("problems") or [{}]))
            why = problem.get("text", "it is not placeable")
            return f"GPU {gpu.get('index')} ({uuid}): {why}", problem.get("hint", "")
    return None


def _by_uuid(inventory: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(gpu.get("uuid")): gpu for gpu in inventory.get("gpus") or []}


def _memory(profile: Profile, gpu: Mapping[str, Any]) -> str | None:
    """What the profile says that it takes against what is free now. vLLM takes its share of the whole card or ends."""
    total, used = gpu.get("memory_total_mib"), gpu.get("memory_used_mib")
    if total is None or used is None or gpu.get("shared_memory"):
        return None
    need = profile.memory_mib_per_gpu
    if need is None and profile.engine is EngineKind.VLLM and profile.gpu_memory_utilization is not None:
        need = int(total * profile.gpu_memory_utilization)
    return f"has {total - used} MiB free, {need} MiB needed" if need is not None and total - used < need else None


def free_port(ports: range, taken: Iterable[int], address: str) -> int | None:
    """The first port of the range that binds; None when there is none."""
    used = set(taken)
    for port in ports:
        if port in used:
            continue
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    return None
