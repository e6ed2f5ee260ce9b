"""What a profile could ask for instead, without less memory in all: other cards, fewer nodes, a looser NVLink rule.

The longest context follows only from the model's own shapes; where they are known it is named.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from agent_client.profile import EngineKind, NvlinkRule, Profile
from agent_client.profile.memory import ACTIVATIONS_BYTES, GRAPHS_BYTES, MIB, estimate
from agent_client.profile.model_facts import ModelFacts
from agent_client.profile.rules import MOST_SHARE, share_needed
from fleet.domain.placement_filters import Need
from fleet.domain.placement_search import Ask
from fleet.domain.reasons import Change, ChangeKind, Reason
from fleet.domain.types import GpuView

#: So many amounts of free memory are tried, the largest first.
TRIED_AMOUNTS = 6
#: Of what was asked, where the model's weights are not known: most of it is theirs, and with less nothing would load.
KEPT_SHARE = 0.5
#: Tokens; nobody is served by less.
LEAST_CONTEXT = 1024


_TORCH = (EngineKind.VLLM, EngineKind.SGLANG)


def of_profile(ask: Ask, facts: ModelFacts | None) -> Iterator[Change]:
    yield from _nvlink(ask.profile)
    yield from _share(ask)
    yield from _memory(ask, facts)
    yield from _sizes(ask)


def _set(values: Mapping[str, Any], text: str = "") -> Change:
    told = text or "set " + " and ".join(f"{name}: {_shown(value)}" for name, value in values.items())
    return Change(kind=ChangeKind.SET_PROFILE, target="", text=told, values=values)


def _shown(value: Any) -> str:
    return "[" + ", ".join(value) + "]" if isinstance(value, tuple | list) else str(value)


def _nvlink(profile: Profile) -> Iterator[Change]:
    if profile.nvlink is NvlinkRule.REQUIRE and profile.group == 2:
        yield _set({"nvlink": "prefer"})
    if profile.nvlink is not NvlinkRule.OFF and profile.group > 1:
        yield _set({"nvlink": "off"})


def _share(ask: Ask) -> Iterator[Change]:
    """More of a card, where the model needs more than the share that is asked for; the smallest that would do."""
    if ask.facts is None or ask.need.floor is None:
        return
    whole = estimate(ask.profile, ask.facts).total or 0
    totals = {g.memory_total_mib for g in _cards(ask) if g.memory_total_mib and ask.need.unmet(g) is Reason.SHARE}
    for total in sorted(totals, reverse=True)[:TRIED_AMOUNTS]:
        for need in (max(whole, ask.need.floor), ask.need.floor):
            if (share := share_needed(need, total)) <= MOST_SHARE:
                yield _set({"gpu_memory_utilization": share})
                break


def _memory(ask: Ask, facts: ModelFacts | None) -> Iterator[Change]:
    """Less memory of each card, and with the model's shapes the context that goes with it."""
    cards = [gpu for gpu in _cards(ask) if gpu.free and gpu.memory_total_mib]
    short = [gpu for gpu in cards if ask.need.memory_of(gpu) is not None and not _enough(ask.need, gpu)]
    amounts = sorted({(gpu.memory_free_mib or 0, gpu.memory_total_mib or 0) for gpu in short}, reverse=True)
    for free, total in amounts[:TRIED_AMOUNTS]:
        if facts is None and free < _least_of_unknown(ask, total):
            continue
        if ask.profile.memory_mib_per_gpu is not None:
            values: dict[str, Any] = {"memory_mib_per_gpu": free}
        elif free * 100 // total > 0:
            values = {"gpu_memory_utilization": free * 100 // total / 100}
        else:
            continue
        context = _context(ask.profile, facts, free)
        if facts is None:
            yield _set(values)
        elif context:
            whole = {"max_model_len": context, **values}
            rest = " and ".join(f"{name}: {value}" for name, value in values.items())
            yield _set(whole, f"set max_model_len: {context} or less, and {rest}")


def _least_of_unknown(ask: Ask, total: int) -> int:
    """MiB of a card below which nothing is proposed for a model whose weights are not known.

    Beside these a vLLM takes 2.4 GiB for itself, so a share that only just fits would end in its first allocation.
    """
    asked = ask.profile.memory_mib_per_gpu or int(total * (ask.need.share or 0.0))
    own = (ACTIVATIONS_BYTES + GRAPHS_BYTES) // MIB if ask.profile.engine in _TORCH else 0
    return max(int(asked * KEPT_SHARE), 2 * own)


def _context(profile: Profile, facts: ModelFacts | None, free_mib: int) -> int:
    """The longest context of one request in so much memory; 0 when that is useless, or the weights are not known."""
    if facts is None:
        return 0
    found = estimate(profile, facts)
    if found.cache is None or found.weights is None:
        return 0
    own = [
        part.bytes for part in found.parts[2:]
    ]  # beside weights and cache; where it is not known, as much as PyTorch
    room = free_mib * MIB - found.weights - sum(ACTIVATIONS_BYTES if size is None else size for size in own)
    most = found.cache.most_context(room) if room > 0 else 0
    longest = min(most, found.context or most)
    return longest if longest >= min(LEAST_CONTEXT, found.context or LEAST_CONTEXT) else 0


def _sizes(ask: Ask) -> Iterator[Change]:
    """Fewer nodes, or fewer cards with as much memory in all."""
    profile = ask.profile
    if profile.gpus is not None or profile.gpus_total <= 1:
        return
    by_class = _memory_by_class(ask)
    if profile.memory_mib_per_gpu is not None:
        each: int | None = profile.memory_mib_per_gpu
    else:
        each = min((by_class[name] for name in profile.gpu_class or by_class if name in by_class), default=None)
    for nodes, size in product(_divisors(profile.nodes), _divisors(profile.tensor_parallel)):
        cards = size * profile.pipeline_parallel * profile.data_parallel
        if (nodes, size) == (profile.nodes, profile.tensor_parallel) or cards % nodes:
            continue
        values: dict[str, Any] = {}
        if nodes != profile.nodes:
            values["nodes"] = nodes
        if size == profile.tensor_parallel:
            yield _set(values)
            continue
        if each is None:
            continue
        need = -(-each * profile.tensor_parallel // size)
        classes = tuple(sorted(name for name, total in by_class.items() if total >= need))
        if not classes:
            continue
        values["tensor_parallel"] = size
        if profile.memory_mib_per_gpu is not None:
            values["memory_mib_per_gpu"] = need
        if profile.gpu_class and not set(classes) & set(profile.gpu_class):
            values["gpu_class"] = classes
        elif not set(profile.gpu_class or by_class) <= set(classes):
            values["gpu_class"] = tuple(name for name in profile.gpu_class or sorted(by_class) if name in classes)
        yield _set(values)


def _divisors(number: int) -> list[int]:
    """The number itself first, then ever smaller ones."""
    return [size for size in range(number, 0, -1) if number % size == 0]


def _memory_by_class(ask: Ask) -> dict[str, int]:
    """The smallest card of each class."""
    out: dict[str, int] = {}
    for node in ask.index.nodes.values():
        for gpu in node.gpus:
            if gpu.memory_total_mib and not gpu.mig:
                out[gpu.gpu_class] = min(out.get(gpu.gpu_class, gpu.memory_total_mib), gpu.memory_total_mib)
    return out


def _cards(ask: Ask) -> Iterator[GpuView]:
    wanted = ask.profile.gpu_class
    for node in ask.index.nodes.values():
        yield from (gpu for gpu in node.gpus if node.standing and (not wanted or gpu.gpu_class in wanted))


def _enough(need: Need, gpu: GpuView) -> bool:
    memory, free = need.memory_of(gpu), gpu.memory_free_mib
    return memory is None or free is None or free >= memory
