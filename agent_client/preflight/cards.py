"""The cards that a shard was given: there, healthy, of the right class, nobody else's, and with room."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_client.profile import EngineKind, Problem, Profile
from agent_client.profile.subject import capability_of
from agent_client.protocol.messages import ShardSpec
from agent_client.protocol.states import FailureCode

Gpu = Mapping[str, Any]
_GONE = "look for Xid 79 in dmesg, and at what nvidia-smi -L lists"


def given(spec: ShardSpec, inventory: Mapping[str, Any]) -> Sequence[Gpu]:
    """Those of the shard that are there."""
    known = {str(gpu.get("uuid")): gpu for gpu in inventory.get("gpus") or []}
    return [known[uuid] for uuid in spec.gpus if uuid in known]


def problems(
    profile: Profile, spec: ShardSpec, inventory: Mapping[str, Any], owned_pids: set[int]
) -> Iterator[Problem]:
    """One for each card."""
    there = {str(gpu["uuid"]): gpu for gpu in given(spec, inventory)}
    for uuid in spec.gpus:
        gpu = there.get(uuid)
        if gpu is None:
            why, code, hint = f"GPU {uuid} is not in this node's inventory", FailureCode.GPU_MISSING, "run `inventory`"
        else:
            reason = _against(profile, gpu, owned_pids)
            if reason is None:
                continue
            code, said, hint = reason
            why = f"GPU {gpu.get('index')} ({uuid}) {said}"
        yield Problem(code=code.value, field="profile.gpus", text=f"cannot start {spec.replica}: {why}", hint=hint)


def sick(spec: ShardSpec, inventory: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first of a shard's cards that is gone or that nothing may be placed on, and why; and a hint."""
    there = {str(gpu["uuid"]): gpu for gpu in given(spec, inventory)}
    for uuid in spec.gpus:
        gpu = there.get(uuid)
        if gpu is None:
            return f"GPU {uuid} is gone from this node", _GONE
        if not gpu.get("placeable", True):
            problem = next(iter(gpu.get("problems") or [{}]))
            why = problem.get("text", "it is not placeable")
            return f"GPU {gpu.get('index')} ({uuid}): {why}", str(problem.get("hint", ""))
    return None


def too_old(profile: Profile, gpu: Gpu) -> str | None:
    """What a card says of its compute capability against what the profile asks; one that does not tell is too old."""
    if profile.min_compute_capability is None:
        return None
    least, has = (capability_of(text) for text in (profile.min_compute_capability, gpu.get("compute_capability")))
    if least is None or (has is not None and has >= least):
        return None
    told = gpu.get("compute_capability") or "unknown"
    return f"has compute capability {told}, {profile.min_compute_capability} needed"


def _against(profile: Profile, gpu: Gpu, owned_pids: set[int]) -> tuple[FailureCode, str, str] | None:
    if not gpu.get("placeable", True):
        problem = next(iter(gpu.get("problems") or [{}]))
        said = f"can't be used: {problem.get('text') or 'it is not placeable'}"
        return FailureCode.GPU_MISSING, said, str(problem.get("hint") or "see `inventory`")
    if profile.gpu_class and gpu.get("class") not in (None, "", *profile.gpu_class):
        said = f"is a {gpu['class']}, {' or '.join(profile.gpu_class)} is needed"
        return FailureCode.GPU_MISSING, said, "the control plane knew another card: it is told, and places anew"
    if old := too_old(profile, gpu):
        return FailureCode.GPU_MISSING, old, "lower min_compute_capability, or name a newer class"
    for process in gpu.get("processes") or []:
        # The inventory may be half a minute old: an engine of ours that ended since was not foreign in it.
        if process.get("foreign", True) and process.get("pid") not in owned_pids:
            who = f"{process.get('name') or 'a process'} (pid {process.get('pid')})"
            return FailureCode.GPU_BUSY, f"is used by {who}", "end it, or cordon the card"
    if short := _memory(profile, gpu):
        return FailureCode.GPU_BUSY, short, "free memory on the card, or ask for less"
    return None


def _memory(profile: Profile, gpu: Gpu) -> str | None:
    """What the profile says that it takes against what is free now. vLLM takes its share of the whole card or ends."""
    total, used = gpu.get("memory_total_mib"), gpu.get("memory_used_mib")
    if total is None or used is None or gpu.get("shared_memory"):
        return None
    need = profile.memory_mib_per_gpu
    if need is None and profile.engine is EngineKind.VLLM and profile.gpu_memory_utilization is not None:
        need = int(total * profile.gpu_memory_utilization)
    return f"has {total - used} MiB free, {need} MiB needed" if need is not None and total - used < need else None
