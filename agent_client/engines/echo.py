"""The built-in echo engine: no model at all; it says back what it is asked. For trying llmgw out, and for its tests."""

from agent_client.engines.base import Launch, LaunchSpec, cards, command, environment, refuse
from agent_client.engines.command import extra, ours
from agent_client.engines.options import refused, table
from agent_client.engines.unmapped import unmapped

PROGRAM = "echo_server.py"
OPTIONS = "echo_server"
OWNED_FLAGS = ("--host", "--port", "--served-model-name")
_OF_A_MODEL = ("max_model_len", "gpu_memory_utilization", "dtype", "quantization", "kv_cache_dtype", "expert_parallel")
_UNMAPPED = dict.fromkeys(_OF_A_MODEL, ("it runs no model", "leave it out"))


def plan(spec: LaunchSpec) -> Launch:
    known = refused(spec.profile.extra_args, table(OPTIONS), OWNED_FLAGS)
    refuse(spec, (*known, *unmapped(spec.profile, "echo", _UNMAPPED)))
    words = command(spec, (spec.python, f"{spec.programs}/{PROGRAM}"))
    words += ours("--host", spec.address, "--port", spec.port)
    words += [*ours("--served-model-name", *spec.served_names), *extra(spec.profile)]
    owned = cards(spec) | ({"LLMGW_ENGINE_KEY": spec.engine_key} if spec.engine_key else {})
    return Launch(words=tuple(words), env=environment(spec, owned, secrets=["LLMGW_ENGINE_KEY"]))
