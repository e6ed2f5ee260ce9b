"""vLLM: `vllm serve MODEL …`. Checked against the complete option list of vLLM 0.32 in the tests."""

from agent_client.engines.base import Launch, LaunchSpec, cards, environment, flag, refuse, rendezvous
from agent_client.engines.options import refused, table

OPTIONS = "vllm"
#: Where and how it serves, what it runs on, and what the profile has fields for.
OWNED_FLAGS = (
    *("--host", "--port", "--uds", "--grpc", "--grpc-port", "--root-path", "--api-key", "--served-model-name"),
    *("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs", "--model", "--config"),
    *("--tensor-parallel-size", "--pipeline-parallel-size", "--enable-expert-parallel", "--device-ids"),
    *("--data-parallel-size", "--data-parallel-size-local", "--data-parallel-rank", "--data-parallel-start-rank"),
    *("--data-parallel-address", "--data-parallel-rpc-port", "--data-parallel-backend"),
    *("--data-parallel-hybrid-lb", "--data-parallel-external-lb", "--data-parallel-multi-port-external-lb"),
    *("--data-parallel-supervisor-port", "--distributed-executor-backend"),
    *("--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"),
    *("--max-model-len", "--gpu-memory-utilization", "--dtype", "--quantization", "--kv-cache-dtype"),
    "--disable-log-stats",  # the figures that llmgw reads would stand still
)


def plan(spec: LaunchSpec) -> Launch:
    profile = spec.profile
    refuse(spec, refused(profile.extra_args, table(OPTIONS), OWNED_FLAGS))
    argv: list[str] = [*(spec.command or ("vllm", "serve")), profile.model]
    argv += ["--host", spec.address, "--port", str(spec.port), "--served-model-name", *spec.served_names]
    argv += ["--tensor-parallel-size", str(profile.tensor_parallel)]
    if profile.pipeline_parallel > 1:
        argv += ["--pipeline-parallel-size", str(profile.pipeline_parallel)]
    if profile.data_parallel > 1:
        argv += ["--data-parallel-size", str(profile.data_parallel)]
    if profile.expert_parallel:
        argv += ["--enable-expert-parallel"]
    argv += flag("--max-model-len", profile.max_model_len)
    argv += flag("--gpu-memory-utilization", profile.gpu_memory_utilization)
    argv += flag("--dtype", profile.dtype)
    argv += flag("--quantization", profile.quantization)
    argv += flag("--kv-cache-dtype", profile.kv_cache_dtype)
    argv += _ranks(spec)
    owned = cards(spec) if profile.gpus_total else {}
    if spec.engine_key:
        owned["VLLM_API_KEY"] = spec.engine_key
    # Else it takes the default route's.
    automatic = {"VLLM_HOST_IP": spec.address} if spec.nodes > 1 else {}
    env = environment(spec, owned, automatic=automatic, secrets=["VLLM_API_KEY"])
    return Launch(argv=(*argv, *profile.extra_args), env=env)


def _ranks(spec: LaunchSpec) -> list[str]:
    """Its own multi-node form: ranks are cut from data x pipeline x tensor parallel; all but the first serve nothing.

    From --nnodes it also works out how many data-parallel copies a node has (engine/arg_utils.py).
    """
    meeting = rendezvous(spec)
    if meeting is None:
        return []
    address, port = meeting
    argv = ["--nnodes", str(spec.nodes), "--node-rank", str(spec.rank)]
    argv += ["--master-addr", address, "--master-port", str(port)]
    return argv + (["--headless"] if spec.rank > 0 else [])
