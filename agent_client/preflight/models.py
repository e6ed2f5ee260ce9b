"""The model on this node: may it be read here, is it whole, and does it go with the profile and the cards."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_client.config import AgentConfig
from agent_client.model_files import Model, read_model
from agent_client.profile import EngineKind, Problem, Profile
from agent_client.profile.model_facts import ModelFacts
from agent_client.profile.rules import Verdict, judge
from agent_client.profile.subject import Card, Subject, capability_of
from agent_client.protocol.messages import ShardSpec
from agent_client.protocol.states import FailureCode

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (where engines share memory, not a temporary file)
_READ_HERE = (EngineKind.VLLM, EngineKind.SGLANG, EngineKind.LLAMACPP)
#: What is missing in the folder, and the arguments by which an engine takes it from elsewhere or does without.
_ELSEWHERE = {
    "weights_incomplete": ("--load-format", "--model-loader-extra-config"),
    "tokenizer_missing": ("--tokenizer", "--tokenizer-path", "--tokenizer-mode", "--skip-tokenizer-init"),
    "config_missing": ("--hf-config-path", "--config-format"),
}


def find(config: AgentConfig, profile: Profile, spec: ShardSpec) -> tuple[Path | None, list[Problem]]:
    """Where the model lies, if it is a path at all and may be used."""
    model = profile.model
    if model.startswith(("~", "./", "../")):
        text = f"cannot start {spec.replica}: the model {model} is no whole path"
        return None, [_problem(FailureCode.MODEL_MISSING, text, "give the path from / on")]
    roots = config.policy.roots
    if not model.startswith("/"):
        why = config.policy.against_hub(model) if model and profile.engine in _READ_HERE else None
        if why is None:
            return None, _unfetched(config, profile, spec)
        text = f"cannot start {spec.replica}: model {model} is no path, and {why}"
        return None, [_problem(FailureCode.POLICY_REFUSED, text, "name a path there, or see policy.hub in agent.yaml")]
    try:
        real = Path(model).resolve(strict=True)
    except OSError:
        text = f"cannot start {spec.replica}: there is no {model} on this node"
        return None, [_problem(FailureCode.MODEL_MISSING, text, "copy the model there, or name another path")]
    if roots and not any(real.is_relative_to(root.resolve()) for root in roots):
        text = f"cannot start {spec.replica}: {real} is outside this node's model_roots"
        return None, [_problem(FailureCode.POLICY_REFUSED, text, "copy it below one of policy.model_roots")]
    if not os.access(real, os.R_OK):
        text = f"cannot start {spec.replica}: {real} can't be read"
        return None, [_problem(FailureCode.MODEL_MISSING, text, "the agent's user must be able to read the model")]
    return Path(model), []


def _unfetched(config: AgentConfig, profile: Profile, spec: ShardSpec) -> list[Problem]:
    """What only the agent can do with a hub id, where the node's owner does not say where it may put the files."""
    if config.policy.hub is not None or not profile.from_hub:
        return []
    hint = "set policy.hub in the node's agent.yaml, or name a path"
    text = f"cannot start {spec.replica}: this node does not fetch models, and"
    if profile.engine is EngineKind.LLAMACPP:
        return [_problem(FailureCode.MODEL_MISSING, f"{text} llama.cpp takes a file, not {profile.model}", hint)]
    if profile.model_files:
        what = f"{profile.engine} can't be told to take {', '.join(profile.model_files)} only"
        return [_problem(FailureCode.MODEL_MISSING, f"{text} {what}", hint)]
    return []


def read(profile: Profile, path: Path | None) -> Model:
    """Its facts, and what is wrong with its files that matters to this profile."""
    if path is None or profile.engine not in _READ_HERE:
        return Model(facts=ModelFacts())
    model = read_model(path)
    given = {arg.split("=", 1)[0].replace("_", "-") for arg in profile.extra_args}
    told = tuple(each for each in model.problems if not given & set(_ELSEWHERE.get(each.code, ())))
    if profile.engine is EngineKind.LLAMACPP and path.is_dir() and not told:
        text, hint = "llama.cpp reads one GGUF file, this is a folder", "name the .gguf file, or use vllm"
        told = (Problem(code="model_unusable", field="profile.model", text=f"cannot run {path}: {text}", hint=hint),)
    return Model(facts=model.facts, problems=told)


def verdict(
    profile: Profile,
    spec: ShardSpec,
    facts: ModelFacts,
    gpus: Sequence[Mapping[str, Any]],
    engine_version: tuple[int, ...] | None,
) -> Verdict:
    """The rules with what this node knows: its cards as they are now, its engine's version, its shared memory."""
    return judge(
        Subject(
            profile=profile,
            facts=facts,
            cards=tuple(card(gpu) for gpu in gpus),
            engine_version=engine_version,
            served_names=spec.served_names,
            shm_free_mib=_free_mib(SHARED_MEMORY),
        )
    )


def card(gpu: Mapping[str, Any]) -> Card:
    """One card of an inventory. What it shares with the machine says nothing about room for a model."""
    total, used = gpu.get("memory_total_mib"), gpu.get("memory_used_mib")
    shared = bool(gpu.get("shared_memory"))
    return Card(
        name=str(gpu.get("name") or ""),
        capability=capability_of(gpu.get("compute_capability")),
        memory_total_mib=None if shared else total,
        memory_free_mib=total - used if not shared and total is not None and used is not None else None,
    )


def _free_mib(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize // (1024 * 1024)


def _problem(code: FailureCode, text: str, hint: str) -> Problem:
    return Problem(code=code.value, field="profile.model", text=text, hint=hint)
