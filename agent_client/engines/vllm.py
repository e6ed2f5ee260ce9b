"""vLLM: `vllm serve MODEL …`. Checked against the complete option list of vLLM 0.32 in the tests."""

from agent_client.engines.base import Launch, LaunchSpec, cards, command, environment, refuse, rendezvous
from agent_client.engines.command import Word, asked, either, extra, ours
from agent_client.engines.options import refused, table, unparsable
from agent_client.engines.unmapped import unmapped
from agent_client.profile import Profile

OPTIONS = "vllm"
#: Where and how it serves, what it runs on, and what the profile has fields for.
OWNED_FLAGS = (
    *("--host", "--port", "--uds", "--grpc", "--grpc-port", "--root-path", "--api-key", "--served-model-name"),
    *("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs", "--model", "--revision", "--config"),
    *("--tensor-parallel-size", "--pipeline-parallel-size", "--enable-expert-parallel", "--device-ids"),
    *("--data-parallel-size", "--data-parallel-size-local", "--data-parallel-rank", "--data-parallel-start-rank"),
    *("--data-parallel-address", "--data-parallel-rpc-port", "--data-parallel-backend"),
    *("--data-parallel-hybrid-lb", "--data-parallel-external-lb", "--data-parallel-multi-port-external-lb"),
    *("--data-parallel-supervisor-port", "--distributed-executor-backend"),
    *("--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"),
    *("--max-model-len", "--gpu-memory-utilization", "--dtype", "--quantization", "--kv-cache-dtype"),
    "--disable-log-stats",  # the figures that llmgw reads would stand still
)


#: Counted up from VLLM_PORT: torch's rendezvous, and the message queues of a head with ranks elsewhere.
_INTERNAL_PORTS, _INTERNAL_PORTS_OVER_NODES = 1, 2


def internal_ports(profile: Profile) -> int:
    """Copies inside one engine would all begin to count at VLLM_PORT at once, so the kernel gives them theirs."""
    if profile.data_parallel > 1:
        return 0
    return _INTERNAL_PORTS if profile.nodes == 1 else _INTERNAL_PORTS_OVER_NODES


def plan(spec: LaunchSpec) -> Launch:
    profile = spec.profile
    known = table(OPTIONS)
    wrong = (*refused(profile.extra_args, known, OWNED_FLAGS), *unparsable(profile.extra_args, known))
    refuse(spec, (*wrong, *unmapped(profile, "vLLM", {})))
    words = [*command(spec, ("vllm", "serve")), *asked(profile.model), *asked("--revision", profile.model_revision)]
    words += ours("--host", spec.address, "--port", spec.port)
    words += ours("--served-model-name", *spec.served_names)
    words += either("--tensor-parallel-size", profile.tensor_parallel, default=1)
    if profile.pipeline_parallel > 1:
        words += asked("--pipeline-parallel-size", profile.pipeline_parallel)
    if profile.data_parallel > 1:
        words += asked("--data-parallel-size", profile.data_parallel)
    if profile.expert_parallel:
        words += asked("--enable-expert-parallel")
    words += asked("--max-model-len", profile.max_model_len)
    words += asked("--gpu-memory-utilization", profile.gpu_memory_utilization)
    words += asked("--dtype", profile.dtype)
    words += asked("--quantization", profile.quantization)
    words += asked("--kv-cache-dtype", profile.kv_cache_dtype)
    words += [*_ranks(spec), *extra(profile)]
    owned = cards(spec) if profile.gpus_total else {}
    if spec.engine_key:
        owned["VLLM_API_KEY"] = spec.engine_key
    if spec.internal_ports:
        owned["VLLM_PORT"] = str(spec.internal_ports[0])
    address = {"VLLM_HOST_IP": spec.address} if spec.nodes > 1 else {}  # else it takes the default route's
    env = environment(spec, owned, automatic=address, secrets=["VLLM_API_KEY"])
    return Launch(words=tuple(words), env=env)


def _ranks(spec: LaunchSpec) -> list[Word]:
    """Its own multi-node form: ranks are cut from data x pipeline x tensor parallel; all but the first serve nothing.

    From --nnodes it also works out how many data-parallel copies a node has (engine/arg_utils.py).
    """
    meeting = rendezvous(spec)
    if meeting is None:
        return []
    address, port = meeting
    words = ours("--nnodes", spec.nodes, "--node-rank", spec.rank, "--master-addr", address, "--master-port", port)
    if spec.profile.data_parallel > 1:
        words += ours("--data-parallel-rpc-port", port + 1)
    return words + (ours("--headless") if spec.rank > 0 else [])
