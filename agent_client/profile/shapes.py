"""Shapes that must divide: heads, KV heads, vocabulary, widths, quantization blocks, experts, layers.

As vLLM 0.32 and SGLang 0.5.23 refuse them, by their sources; each rule names where.
"""

from collections.abc import Iterator
from dataclasses import replace

from agent_client.profile.problems import Problem
from agent_client.profile.subject import Rule, Subject, shown_divisors

_VOCABULARY_PAD = 64
_MARLIN_OUT, _MARLIN_IN = 64, 128
_MARLIN_METHODS = ("gptq", "awq")
#: Models whose own code asserts it in vLLM 0.32; its general expert layer spreads an uneven rest.
_EVEN_EXPERTS_VLLM = ("DeepseekV4",)
_VLLM_REFINES_BLOCKS = (0, 32)


def heads(on: Subject) -> Iterator[Problem]:
    """vLLM: config/model.py verify_with_parallel_config; SGLang: an assertion while loading."""
    count = on.facts.heads
    if count is not None and count % on.tp:
        yield on.problem(
            "heads_not_divisible",
            "tensor_parallel",
            f"its {count} attention heads do not divide by tensor_parallel {on.tp}",
            f"choose one of {shown_divisors(count)}",
        )


def kv_heads(on: Subject) -> Iterator[Problem]:
    """Split when there are enough, else each is held by as many ranks: a bare assertion in the worker, in both engines.

    MLA has no KV heads to split.
    """
    count = on.facts.kv_heads
    if count is None or on.facts.mla is not None or on.facts.full_layers == 0:
        return
    if (count % on.tp if count >= on.tp else on.tp % count) == 0:
        return
    which = "divide by" if count >= on.tp else "divide"
    yield on.problem(
        "kv_heads_not_divisible",
        "tensor_parallel",
        f"its {count} KV heads do not {which} tensor_parallel {on.tp}",
        f"choose a divisor of {count}, or a multiple of it",
    )


def vocabulary(on: Subject) -> Iterator[Problem]:
    """Padded to a multiple of 64, then split: "320 is not divisible by 3" (vLLM measured; SGLang has the same text)."""
    count = on.facts.vocabulary
    if count is None:
        return
    padded = -(-count // _VOCABULARY_PAD) * _VOCABULARY_PAD
    if padded % on.tp:
        yield on.problem(
            "vocabulary_not_divisible",
            "tensor_parallel",
            f"its vocabulary of {count}, padded to {padded}, does not divide by tensor_parallel {on.tp}",
            "choose a tensor_parallel that is a power of two",
        )


def widths(on: Subject) -> Iterator[Problem]:
    """Each MLP is split over the ranks (vLLM: distributed/utils.py divide); experts too, unless spread whole."""
    facts = on.facts
    rows = [("MLP", facts.intermediate, facts.dense_layers)]
    if on.ep == 1:
        rows.append(("expert", facts.moe_intermediate, facts.moe_layers))
    for name, size, layers in rows:
        if size is not None and layers and size % on.tp:
            yield on.problem(
                "width_not_divisible",
                "tensor_parallel",
                f"the width {size} of its {name} layers does not divide by tensor_parallel {on.tp}",
                f"choose one of {shown_divisors(size)}",
            )


def layers(on: Subject) -> Iterator[Problem]:
    """Layers need not divide, but each stage needs one (vLLM: ZeroDivisionError)."""
    count = on.facts.layers
    if count is not None and on.pp > count:
        yield on.problem(
            "too_many_stages",
            "pipeline_parallel",
            f"pipeline_parallel {on.pp} is more than its {count} layers",
            "choose a smaller pipeline_parallel",
        )


def fp8_blocks(on: Subject) -> Iterator[Problem]:
    """One scale for each block: a rank's share must be whole blocks (vLLM: fp8_utils.py validate_fp8_block_shape).

    Experts: vLLM 0.32 refines or pads the blocks, versions before and SGLang refuse.
    """
    quantization = on.facts.quantization
    if quantization is None or quantization.block is None or on.tp == 1:
        return
    out, into = quantization.block
    refuse_experts = on.is_sglang or (on.engine_version is not None and on.engine_version < _VLLM_REFINES_BLOCKS)
    for name, size, field_size in _shares(on, with_experts=refuse_experts):
        for block in {out, into} if field_size.endswith("width") else {out}:
            if size % block:
                yield on.problem(
                    "block_not_divisible",
                    "tensor_parallel",
                    f"with tensor_parallel {on.tp} a GPU has {size} of its {name}, "
                    f"no multiple of the quantization's block of {block}",
                    "lower tensor_parallel, or use pipeline_parallel",
                )
                return


def _shares(on: Subject, *, with_experts: bool) -> Iterator[tuple[str, int, str]]:
    """What one rank holds: name, size, and "width" for an output of one layer that is an input of the next."""
    facts, tp = on.facts, on.tp
    if facts.dense_layers and facts.intermediate is not None:
        yield "MLP width", facts.intermediate // tp, "width"
    if with_experts and facts.moe_layers and facts.moe_intermediate is not None:
        yield "expert width", facts.moe_intermediate // max(1, tp // on.ep), "width"
    if facts.shared_intermediate and facts.moe_layers:
        yield "shared expert width", facts.shared_intermediate // tp, "width"
    skipped = facts.quantization.skipped if facts.quantization else ()
    if any("attn" in name for name in skipped):
        return
    if facts.mla is None and facts.heads is not None and facts.kv_heads is not None and facts.head_dim is not None:
        yield "query heads", facts.heads // tp * facts.head_dim, "width"
        yield "KV heads", max(1, facts.kv_heads // tp) * facts.head_dim, "out"


def marlin(on: Subject) -> Iterator[Problem]:
    """4-bit weights: outputs in 64s, inputs in 128s and whole groups (vLLM: marlin_utils.py)."""
    quantization, facts = on.facts.quantization, on.facts
    if not on.is_vllm or quantization is None or on.tp == 1:
        return
    if not quantization.method.startswith(_MARLIN_METHODS) or not facts.dense_layers or facts.intermediate is None:
        return
    share = facts.intermediate // on.tp
    group = quantization.group_size or 0
    step = max(_MARLIN_IN, group) if group else _MARLIN_IN
    if share % step or 2 * share % _MARLIN_OUT:
        yield on.problem(
            "block_not_divisible",
            "tensor_parallel",
            f"with tensor_parallel {on.tp} a GPU has {share} of its MLP width, "
            f"and {quantization.method}'s kernel needs a multiple of {step}",
            "lower tensor_parallel, use pipeline_parallel, or take a copy of the model that was padded for it",
        )


def experts(on: Subject) -> Iterator[Problem]:
    """vLLM: config/model.py for models without experts, and the code of some models; SGLang: its expert layer."""
    if not on.profile.expert_parallel:
        return
    count = on.facts.experts
    if count is None:
        if on.facts.moe_layers == 0 and on.is_vllm:
            text, hint = "expert_parallel is set, and it has no experts", "set expert_parallel: false"
            yield on.problem("no_experts", "expert_parallel", text, hint)
        return
    even = on.is_sglang or on.facts.architecture.startswith(_EVEN_EXPERTS_VLLM)
    if even and count % on.ep:
        yield on.problem(
            "experts_not_divisible",
            "expert_parallel",
            f"its {count} experts do not divide by {on.ep} GPUs",
            f"choose one of {shown_divisors(count)}",
        )


def nodes(on: Subject) -> Iterator[Problem]:
    """SGLang: validation_hook.py check_server_args; vLLM: engine/arg_utils.py (parse_profile checks that division)."""
    profile = on.profile
    if not on.is_sglang or profile.nodes == 1:
        return
    if on.tp * on.pp % profile.nodes:
        yield on.problem(
            "nodes_not_divisible",
            "nodes",
            f"tensor_parallel {on.tp} x pipeline_parallel {on.pp} does not divide by {profile.nodes} nodes",
            "choose nodes that divide it",
        )
    if profile.data_parallel > 1:
        yield on.problem(
            "data_parallel_over_nodes",
            "data_parallel",
            f"SGLang takes no data_parallel {profile.data_parallel} over {profile.nodes} nodes",
            "set data_parallel: 1 and more replicas, or attention parallelism by --attn-dp-size in extra_args",
        )


RULES: tuple[Rule, ...] = (heads, kv_heads, vocabulary, widths, layers, fp8_blocks, marlin, experts, nodes)

_MOST_TP = 64


def fitting_tensor_parallel(on: Subject) -> tuple[int, ...]:
    """The sizes that no rule of this file refuses, all else as it is."""
    out = []
    for size in range(1, _MOST_TP + 1):
        other = replace(on, profile=replace(on.profile, tensor_parallel=size, gpus=None))
        if not any(True for rule in RULES for _ in rule(other)):
            out.append(size)
    return tuple(out)
