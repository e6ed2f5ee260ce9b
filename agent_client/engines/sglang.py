"""SGLang: `python -m sglang.launch_server …`. Checked against the complete option list of 0.5.23 in the tests."""

from collections.abc import Iterator

from agent_client.engines.base import Launch, LaunchSpec, cards, command, environment, refuse, rendezvous
from agent_client.engines.command import Word, asked, either, extra, ours
from agent_client.engines.options import refused, table, unparsable
from agent_client.engines.unmapped import unmapped
from agent_client.profile import Problem, Profile

OPTIONS = "sglang"
MODULE = ("-m", "sglang.launch_server")
PROGRAM = "sglang_key.py"
KEY_VARIABLE = "LLMGW_ENGINE_KEY"
OWNED_FLAGS = (
    *("--host", "--port", "--api-key", "--admin-api-key", "--served-model-name", "--model-path", "--revision"),
    "--config",
    *("--fastapi-root-path", "--smg-grpc-mode", "--grpc-mode", "--grpc-port", "--smg-http-sidecar-port"),
    *("--enable-http2", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-keyfile-password"),
    *("--tp-size", "--pp-size", "--dp-size", "--ep-size", "--base-gpu-id", "--gpu-id-step", "--use-ray"),
    *("--nnodes", "--node-rank", "--dist-init-addr", "--nccl-port", "--gated-launch-port", "--enable-metrics"),
    *("--context-length", "--mem-fraction-static", "--dtype", "--quantization", "--kv-cache-dtype"),
)
#: Its cache dtypes name the format; "fp8" alone is vLLM's word.
_CACHE_DTYPES = {"fp8": "fp8_e4m3"}


#: Attention data parallelism takes the ports after its meeting point (server_args.py PortArgs: +1 to +6).
_ATTENTION_PORTS = 7
_ATTENTION_FLAGS = ("--attn-dp-size", "--enable-dp-attention", "--dp-attention")


def internal_ports(profile: Profile) -> int:
    """One for NCCL; on one node the meeting point of attention data parallelism is the agent's to give, too."""
    return 1 + (_ATTENTION_PORTS if profile.nodes == 1 and _spreads_attention(profile) else 0)


def plan(spec: LaunchSpec) -> Launch:
    profile = spec.profile
    known = table(OPTIONS)
    wrong = (*refused(profile.extra_args, known, OWNED_FLAGS), *unparsable(profile.extra_args, known))
    refuse(spec, (*wrong, *_names(spec), *unmapped(profile, "SGLang", {})))
    words, key_by_environment = _command(spec)
    words += [*asked("--model-path", profile.model), *ours("--host", spec.address, "--port", spec.port)]
    words += asked("--revision", profile.model_revision)
    words += ours("--served-model-name", spec.served_names[0])
    words += either("--tp-size", profile.tensor_parallel, default=1)
    if profile.pipeline_parallel > 1:
        words += asked("--pp-size", profile.pipeline_parallel)
    if profile.data_parallel > 1:
        words += asked("--dp-size", profile.data_parallel)
    if profile.expert_parallel:
        words += asked("--ep-size", profile.tensor_parallel)
    words += asked("--context-length", profile.max_model_len)
    words += asked("--mem-fraction-static", profile.gpu_memory_utilization)
    words += asked("--dtype", profile.dtype)
    words += asked("--quantization", profile.quantization)
    cache_dtype = profile.kv_cache_dtype
    words += asked("--kv-cache-dtype", _CACHE_DTYPES.get(cache_dtype or "", cache_dtype))
    words += [*_ranks(spec), *_ports(spec), *ours("--enable-metrics")]
    owned = cards(spec) if profile.gpus_total else {}
    if spec.engine_key and key_by_environment:
        owned[KEY_VARIABLE] = spec.engine_key
    elif spec.engine_key:
        words += ours("--api-key", spec.engine_key, secret=True)
    address = {"SGLANG_HOST_IP": spec.address} if spec.nodes > 1 else {}
    env = environment(spec, owned, automatic=address, secrets=[KEY_VARIABLE])
    return Launch(words=(*words, *extra(profile)), env=env)


def _command(spec: LaunchSpec) -> tuple[list[Word], bool]:
    """Its words, and whether it takes the key from the environment.

    SGLang knows only --api-key, which every user of the node can see: a small program of the agent runs the
    same module and adds it inside. A policy's command of another form (a container, a script) gets --api-key.
    """
    words = command(spec, (spec.python, *MODULE))
    if tuple(word.text for word in words[-2:]) == MODULE and len(words) > 2:
        return [*words[:-2], *ours(f"{spec.programs}/{PROGRAM}"), *words[-2:]], True
    return words, False


def _names(spec: LaunchSpec) -> Iterator[Problem]:
    """It serves one name and checks none, so aliases need nothing; what follows a colon would name a LoRA adapter."""
    name = spec.served_names[0]
    if ":" in name:
        text = f"cannot serve the name {name!r} with SGLang: it must have no colon"
        hint = "choose another name, and give this one as an alias"
        yield Problem(code="name_unsupported", field="name", text=text, hint=hint)


def _ranks(spec: LaunchSpec) -> list[Word]:
    meeting = rendezvous(spec)
    if meeting is None:
        return []
    address, port = meeting
    host = f"[{address}]" if ":" in address else address
    return ours("--dist-init-addr", f"{host}:{port}", "--nnodes", spec.nodes, "--node-rank", spec.rank)


def _ports(spec: LaunchSpec) -> list[Word]:
    """Without them it looks for free ones itself, or counts from the port that it serves on."""
    ports = spec.internal_ports
    if not ports:
        return []
    words = ours("--nccl-port", ports[0])
    if spec.nodes == 1 and len(ports) > 1:
        words += ours("--dist-init-addr", f"127.0.0.1:{ports[1]}")
    return words


def _spreads_attention(profile: Profile) -> bool:
    return any(word.split("=", 1)[0] in _ATTENTION_FLAGS for word in profile.extra_args)
