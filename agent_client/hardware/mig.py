"""MIG devices as units of their own, made from what XML and `nvidia-smi -L` each tell of them. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent_client.hardware.cards import Gpu
from agent_client.hardware.classes import gpu_class
from agent_client.hardware.health import Figures, judge, placeable, problem
from agent_client.hardware.nvidia_list import ListedMig

#: SMs of one compute slice by model [A100: capture; Hopper: the SM column of `nvidia-smi mig -lgip`]. For others the
#: profile comes from `-L` alone.
_SMS_PER_SLICE = {"a100": 14, "a800": 14, "h100": 16, "h200": 16, "h800": 16, "gh200": 16}
#: Compute slices and eighths of the memory that make a profile [NVIDIA's MIG guide]. Others are parts of an instance.
_SHAPES = frozenset({(1, 1), (1, 2), (2, 2), (3, 4), (4, 4), (7, 8)})
_SLICES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenMig:
    device: int
    gi: int | None = None
    ci: int | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    memory_reserved_mib: int | None = None
    sms: int | None = None
    ecc_volatile_uncorrectable: int | None = None


def units(
    parent: Gpu,
    seen: Sequence[SeenMig],
    listed: Iterable[ListedMig],
    *,
    first_index: int,
) -> list[Gpu]:
    """One entry per device. Without a UUID (only `-L` tells it) a unit is shown and not placeable."""
    by_device = {each.device: each for each in listed}
    devices = {each.device: each for each in seen}
    for device in by_device:
        devices.setdefault(device, SeenMig(device=device))
    owners = [each.gi for each in seen]
    out = []
    for offset, device in enumerate(sorted(devices)):
        each, known = devices[device], by_device.get(device)
        whole = owners.count(each.gi) == 1
        profile = (known.profile if known else None) or (derive_profile(parent, each) if whole else None)
        out.append(_unit(parent, each, profile, known.uuid if known else None, first_index + offset))
    return out


def derive_profile(parent: Gpu, each: SeenMig) -> str | None:
    """`1g.20gb` from SMs and memory, where they name one profile without doubt."""
    model, _, size = _class_parts(parent["class"])
    per_slice = _SMS_PER_SLICE.get(model)
    total, memory = parent["memory_total_mib"], each.memory_total_mib
    if not (per_slice and total and memory and each.sms and size):
        return None
    compute, eighths = min(each.sms // per_slice, _SLICES), round(8 * memory / total)
    if (compute, eighths) not in _SHAPES:
        return None
    return f"{compute}g.{(size * eighths * 2 + 8) // 16}gb"


def _unit(parent: Gpu, each: SeenMig, profile: str | None, uuid: str | None, index: int) -> Gpu:
    problems = [
        {**inherited, "text": f"its card: {inherited['text']}"}
        for inherited in parent["problems"]
        if inherited["severity"] == "unplaceable"
    ]
    problems += judge(Figures(ecc_volatile_uncorrectable=each.ecc_volatile_uncorrectable))
    if uuid is None:
        text = "its UUID is not known, so it can't be given to an engine"
        problems.append(problem("not_answering", text, hint="run nvidia-smi -L as the agent's user"))
    name = parent["name"]
    return {
        **parent,
        "index": index,
        "uuid": uuid,
        "name": f"{name} MIG {profile}" if name and profile else name,
        "class": gpu_class(name, parent["memory_total_mib"], mig_profile=profile or "") if name else None,
        "memory_total_mib": each.memory_total_mib or None,
        "memory_used_mib": each.memory_used_mib,
        "memory_reserved_mib": each.memory_reserved_mib,
        "domain": None,
        "mig": {"profile": profile, "parent": parent["uuid"], "gi": each.gi, "ci": each.ci, "device": each.device},
        "mig_mode": None,
        "placeable": placeable(problems),
        "processes": [],
        "problems": problems,
        "health": {},
    }


def _class_parts(word: str | None) -> tuple[str, str, int | None]:
    """`h100-sxm-80gb` → h100, sxm, 80."""
    model, _, rest = (word or "").partition("-")
    form, _, size = rest.rpartition("-")
    return model, form, int(size[:-2]) if size.endswith("gb") and size[:-2].isdecimal() else None
