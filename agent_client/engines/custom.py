"""A custom engine: argv from a template. It runs only where the node's own policy lists `custom`."""

from collections.abc import Iterator
from dataclasses import replace
from string import Formatter

from agent_client.engines.base import Launch, LaunchSpec, PlanError, Readiness, cards, command, environment, refuse
from agent_client.engines.command import asked, extra
from agent_client.engines.unmapped import unmapped
from agent_client.profile import Problem

_OPTIONS = ("command", "health_path", "models_path", "probe")
#: What a command may take from the profile; a field that is set and that it has no place for is refused.
_FIELDS = (
    *("tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel"),
    *("max_model_len", "gpu_memory_utilization", "dtype", "quantization", "kv_cache_dtype"),
)
_COUNT_CARDS = ("tensor_parallel", "pipeline_parallel", "data_parallel")  # those are heeded by giving so many


def plan(spec: LaunchSpec) -> Launch:
    template = command(spec, ()) or asked(*spec.profile.options.get("command", ()))
    values = {name: str(getattr(spec.profile, name) or "") for name in _FIELDS} | {
        "model": spec.profile.model,
        "name": spec.served_names[0],
        "address": spec.address,
        "port": str(spec.port),
        "gpus": ",".join(spec.gpus),
        "rank": str(spec.rank),
        "nodes": str(spec.nodes),
    }
    try:
        template += extra(spec.profile)
        used = {name for word in template for name in _placeholders(word.text)}
        if strange := sorted(used - values.keys()):
            raise KeyError(strange[0])
        words = [replace(word, text=word.text.format_map(values)) for word in template]
    except (KeyError, ValueError) as error:
        text = f"cannot launch {spec.replica}: the custom command has an unknown placeholder ({error})"
        hint = "known: " + ", ".join(f"{{{name}}}" for name in values)
        raise PlanError([Problem(code="bad_template", field="profile.options.command", text=text, hint=hint)]) from None
    reasons = {
        name: ("its command has no place for it", f"put {{{name}}} into options.command, or leave it out")
        for name in _FIELDS
        if name not in used and name not in _COUNT_CARDS
    }
    refuse(spec, unmapped(spec.profile, "a custom engine", reasons, options=_OPTIONS))
    owned = cards(spec) if spec.profile.gpus_total else {}
    if spec.engine_key:
        owned["LLMGW_ENGINE_KEY"] = spec.engine_key
    options = spec.profile.options
    readiness = Readiness(
        health_path=str(options.get("health_path", "/health")),
        models_path=options.get("models_path", "/v1/models") or None,
        chat=bool(options.get("probe", True)),
    )
    env = environment(spec, owned, secrets=["LLMGW_ENGINE_KEY"])
    return Launch(words=tuple(words), env=env, readiness=readiness)


def _placeholders(word: str) -> Iterator[str]:
    """Each as it is written: an attribute, an index or a width is no part of a known name."""
    for _, name, form, conversion in Formatter().parse(word):
        if name is not None:
            yield name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
