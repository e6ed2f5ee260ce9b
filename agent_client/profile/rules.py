"""All rules about a profile and the model it is to run: catalog, admin, API, `validate` and agent ask here.

Nothing is refused on a guess: a figure that is not known makes no problem, and memory is refused only for what can't be
done without (weights, and in vLLM the cache of one whole request).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agent_client.profile import abilities, shapes
from agent_client.profile.memory import GIB, MIB, MemoryEstimate, estimate
from agent_client.profile.problems import Problem
from agent_client.profile.profile import EngineKind
from agent_client.profile.subject import Rule, Subject

#: Arguments that put weights or cache elsewhere, or other weights in place of the model's: the estimate is not theirs.
_ELSEWHERE = (
    "--cpu-offload*",
    "--offload*",
    "--load-format",
    "--speculative*",
    "--kv-cache-memory-bytes",
    "--num-gpu-blocks-override",
    "--max-total-tokens",
    "--decode-context-parallel-size",
    "-dcp",
    "--dcp-size",
    "--prefill-context-parallel-size",
    "-pcp",
    "--language-model-only",
    "--hf-overrides*",
    "--kt-*",
)
#: Whose need of memory is known.
_MEASURED = (EngineKind.VLLM, EngineKind.SGLANG)
#: Of a card, that may be asked for: the rest is what driver and engine hold outside of the share.
MOST_SHARE = 0.95
_SHARE_KNOWN_MIB = 256  # what a driver keeps of an idle card


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`warnings` rest on figures that were reported for other models: they refuse nothing."""

    problems: tuple[Problem, ...]
    estimate: MemoryEstimate
    warnings: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


def judge(on: Subject) -> Verdict:
    """Every rule's problems, in a stable order, and the memory estimate with its parts."""
    made = estimate(on.profile, on.facts)
    problems = [problem for rule in _RULES_OF.get(on.profile.engine, ()) for problem in rule(on)]
    if on.profile.gpus_total and on.profile.engine in _MEASURED:
        problems += list(memory(on, made))
    warnings = () if any(each.code.startswith("memory_") for each in problems) else tuple(_tight(on, made))
    return Verdict(problems=tuple(_with_sizes(on, problems)), estimate=made, warnings=warnings)


def memory(on: Subject, made: MemoryEstimate) -> Iterator[Problem]:
    """weights / (TP x PP) + KV cache against share x memory of the smallest card (engines.md section 6).

    vLLM: "To serve at least one request with the model's max seq len", v1/core/kv_cache_utils.py; "Free memory on
    device … is less than desired GPU memory utilization", v1/worker. SGLang goes on with less cache than one request.
    """
    total = on.memory_total_mib
    if on.has_argument(*_ELSEWHERE):
        return
    yield from _taken(on, made)
    if total is None or made.weights is None:
        return
    budget, weights = made.budget(total), made.weights
    have = _have(made, total)
    if small := _small_share(on, made, total):
        yield small
    elif weights >= budget:
        yield on.problem(
            "memory_weights",
            "tensor_parallel",
            f"its weights take {weights / GIB:.1f} GiB of each GPU, {have}",
            _larger(on, weights, budget),
        )
    elif on.is_vllm and made.cache is not None and made.least is not None and made.least > budget:
        most = made.cache.most_context(budget - weights)
        need = made.least - weights
        half = "" if "fp8" in made.cache.how or on.profile.kv_cache_dtype else ", kv_cache_dtype: fp8"
        yield on.problem(
            "memory_context",
            "max_model_len",
            f"one request of {made.context} tokens needs {need / GIB:.1f} GiB of KV cache on each GPU, the weights "
            f"{weights / GIB:.1f} GiB; {have}",
            f"set max_model_len to {most} or less{half}, or use more GPUs",
        )


def floor_bytes(on: Subject, made: MemoryEstimate | None = None) -> int | None:
    """What the share of each GPU must hold at least; None where it is not known, or arguments make it another."""
    made = made or estimate(on.profile, on.facts)
    if on.profile.engine not in _MEASURED or on.has_argument(*_ELSEWHERE) or made.weights is None:
        return None
    whole = made.least if on.is_vllm else None
    return made.weights + 1 if whole is None else whole  # a cache of some size beside the weights


def share_needed(need: int, total_mib: int) -> float:
    """The share of a card that holds so many bytes, as people write it: rounded up to hundredths."""
    return math.ceil(100 * need / (total_mib * MIB)) / 100


def told_share(share: float, total_mib: int, floor: int, *, with_cache: bool) -> str:
    """ "a share of 0.3 of the card's 79.6 GiB is 23.9 GiB, and weights and the smallest cache need 31.0 GiB"."""
    has, card = share * total_mib * MIB / GIB, total_mib * MIB / GIB
    what = "weights and the smallest cache need" if with_cache else "the weights alone need"
    return f"a share of {share:g} of the card's {card:.1f} GiB is {has:.1f} GiB, and {what} {floor / GIB:.1f} GiB"


def _small_share(on: Subject, made: MemoryEstimate, total: int) -> Problem | None:
    """More of the same card would do: then the share that the profile asks for is what is wrong."""
    asked, floor = on.profile.gpu_memory_utilization, floor_bytes(on, made)
    if asked is None or floor is None or floor <= made.budget(total) or share_needed(floor, total) > MOST_SHARE:
        return None
    enough = share_needed(floor, total)
    if made.total is not None and share_needed(made.total, total) <= MOST_SHARE:
        enough = max(enough, share_needed(made.total, total))  # what the engine takes beside both
    context = made.cache.most_context(made.budget(total) - (made.weights or 0)) if made.cache is not None else 0
    shorter = f", or max_model_len to {context} or less" if on.is_vllm and made.least is not None and context else ""
    return on.problem(
        "memory_share",
        "gpu_memory_utilization",
        told_share(asked, total, floor, with_cache=on.is_vllm and made.least is not None),
        f"set gpu_memory_utilization to {enough:g} or more{shorter}",
    )


def _tight(on: Subject, made: MemoryEstimate) -> Iterator[Problem]:
    """vLLM takes the cache out of what its share leaves after weights, activations and graphs."""
    total, need = on.memory_total_mib, made.total
    if not on.is_vllm or not on.profile.gpus_total or total is None or need is None or on.has_argument(*_ELSEWHERE):
        return
    if need > made.budget(total):
        parts = ", ".join(f"{part.name} {part.shown}" for part in made.parts if part.bytes)
        text = f"{on.profile.model} may not fit: it takes about {need / GIB:.1f} GiB of each GPU ({parts})"
        yield Problem(
            code="memory_tight",
            field="profile.gpu_memory_utilization",
            text=f"{text}, {_have(made, total)}",
            hint="raise gpu_memory_utilization, lower max_model_len, or use more GPUs",
        )


def _have(made: MemoryEstimate, total: int) -> str:
    budget = made.budget(total)
    return f"{budget / GIB:.1f} of {total * MIB / GIB:.1f} GiB may be used (gpu_memory_utilization {made.share or 1:g})"


def _larger(on: Subject, weights: int, budget: int) -> str:
    """The smallest tensor_parallel by which the weights fit, among those that the model's shapes allow."""
    least = weights * on.tp // budget + 1
    size = next((n for n in shapes.fitting_tensor_parallel(on) if n >= least), None)
    if size is None:
        return "use larger GPUs, pipeline_parallel, or a quantized copy"
    return f"set tensor_parallel to {size} or more, use larger GPUs, or a quantized copy"


def _taken(on: Subject, made: MemoryEstimate) -> Iterator[Problem]:
    """vLLM wants its share of the whole card free at start; SGLang can't do without room for the weights."""
    for card in on.cards:
        total, free = card.memory_total_mib, card.memory_free_mib
        if total is None or free is None:
            continue
        shown = f"{free / 1024:.1f} of {total / 1024:.1f} GiB are free on {card.name or 'a GPU'}"
        if on.is_vllm and made.share is not None and free + _SHARE_KNOWN_MIB < total * made.share:
            need = f"gpu_memory_utilization {made.share:g} needs {total * made.share / 1024:.1f} GiB"
            hint = "see what else uses the card, or lower gpu_memory_utilization"
            yield on.problem("memory_taken", "gpu_memory_utilization", f"{shown}, {need}", hint)
            return
        weights = made.weights
        if on.is_sglang and weights is not None and free * MIB <= weights < made.budget(total):
            need = f"its weights take {weights / GIB:.1f} GiB of each"
            yield on.problem("memory_taken", "gpus", f"{shown}, {need}", "see what else uses the card")
            return


def _with_sizes(on: Subject, problems: list[Problem]) -> Iterator[Problem]:
    """One hint for all about tensor_parallel: the sizes that all rules allow."""
    wrong = {code for code in (p.code for p in problems) if code.endswith("_not_divisible")}
    sizes = shapes.fitting_tensor_parallel(on) if wrong else ()
    for problem in problems:
        if problem.field == "profile.tensor_parallel" and problem.code in wrong and sizes:
            problem = replace(problem, hint=f"tensor_parallel that fit: {', '.join(map(str, sizes))}")  # noqa: PLW2901
        yield problem


RULES: tuple[Rule, ...] = (*shapes.RULES, *abilities.RULES)
#: llama.cpp splits layers and rows as they come.
_RULES_OF = {EngineKind.VLLM: RULES, EngineKind.SGLANG: RULES, EngineKind.LLAMACPP: (abilities.context,)}
