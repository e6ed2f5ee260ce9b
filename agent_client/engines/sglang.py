"""SGLang: `python -m sglang.launch_server …`. Checked against the complete option list of 0.5.23 in the tests."""

from collections.abc import Iterator

from agent_client.engines.base import Launch, LaunchSpec, cards, environment, flag, refuse, rendezvous
from agent_client.engines.options import refused, table
from agent_client.profile import Problem

OPTIONS = "sglang"
MODULE = ("-m", "sglang.launch_server")
PROGRAM = "sglang_key.py"
KEY_VARIABLE = "LLMGW_ENGINE_KEY"
OWNED_FLAGS = (
    *("--host", "--port", "--api-key", "--admin-api-key", "--served-model-name", "--model-path", "--config"),
    *("--fastapi-root-path", "--smg-grpc-mode", "--grpc-mode", "--grpc-port", "--smg-http-sidecar-port"),
    *("--enable-http2", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-keyfile-password"),
    *("--tp-size", "--pp-size", "--dp-size", "--ep-size", "--base-gpu-id", "--gpu-id-step", "--use-ray"),
    *("--nnodes", "--node-rank", "--dist-init-addr", "--nccl-port", "--gated-launch-port", "--enable-metrics"),
    *("--context-length", "--mem-fraction-static", "--dtype", "--quantization", "--kv-cache-dtype"),
)
#: Its cache dtypes name the format; "fp8" alone is vLLM's word.
_CACHE_DTYPES = {"fp8": "fp8_e4m3"}


def plan(spec: LaunchSpec) -> Launch:
    profile = spec.profile
    refuse(spec, (*refused(profile.extra_args, table(OPTIONS), OWNED_FLAGS), *_names(spec)))
    argv, key_by_environment = _command(spec)
    argv += ["--model-path", profile.model, "--host", spec.address, "--port", str(spec.port)]
    argv += ["--served-model-name", spec.served_names[0], "--tp-size", str(profile.tensor_parallel)]
    if profile.pipeline_parallel > 1:
        argv += ["--pp-size", str(profile.pipeline_parallel)]
    if profile.data_parallel > 1:
        argv += ["--dp-size", str(profile.data_parallel)]
    if profile.expert_parallel:
        argv += ["--ep-size", str(profile.tensor_parallel)]
    argv += flag("--context-length", profile.max_model_len)
    argv += flag("--mem-fraction-static", profile.gpu_memory_utilization)
    argv += flag("--dtype", profile.dtype)
    argv += flag("--quantization", profile.quantization)
    cache_dtype = profile.kv_cache_dtype
    argv += flag("--kv-cache-dtype", _CACHE_DTYPES.get(cache_dtype or "", cache_dtype))
    argv += [*_ranks(spec), "--enable-metrics"]
    owned = cards(spec) if profile.gpus_total else {}
    hidden = frozenset[int]()
    if spec.engine_key and key_by_environment:
        owned[KEY_VARIABLE] = spec.engine_key
    elif spec.engine_key:
        argv += ["--api-key", spec.engine_key]
        hidden = frozenset({len(argv) - 1})
    automatic = {"SGLANG_HOST_IP": spec.address} if spec.nodes > 1 else {}
    env = environment(spec, owned, automatic=automatic, secrets=[KEY_VARIABLE])
    return Launch(argv=(*argv, *profile.extra_args), env=env, secret_words=hidden)


def _command(spec: LaunchSpec) -> tuple[list[str], bool]:
    """Its words, and whether it takes the key from the environment.

    SGLang knows only --api-key, which every user of the node can see: a small program of the agent runs the
    same module and adds it inside. A policy's command of another form (a container, a script) gets --api-key.
    """
    command = list(spec.command or (spec.python, *MODULE))
    if tuple(command[-2:]) == MODULE and len(command) > 2:
        return [*command[:-2], f"{spec.programs}/{PROGRAM}", *MODULE], True
    return command, False


def _names(spec: LaunchSpec) -> Iterator[Problem]:
    """It serves one name and checks none, so aliases need nothing; what follows a colon would name a LoRA adapter."""
    name = spec.served_names[0]
    if ":" in name:
        text = f"cannot serve the name {name!r} with SGLang: it must have no colon"
        hint = "choose another name, and give this one as an alias"
        yield Problem(code="name_unsupported", field="name", text=text, hint=hint)


def _ranks(spec: LaunchSpec) -> list[str]:
    meeting = rendezvous(spec)
    if meeting is None:
        return []
    address, port = meeting
    host = f"[{address}]" if ":" in address else address
    return ["--dist-init-addr", f"{host}:{port}", "--nnodes", str(spec.nodes), "--node-rank", str(spec.rank)]
