"""vLLM: `vllm serve MODEL …`. Checked against the complete option list of vLLM 0.32 in the tests."""

from agent_client.engines.base import Launch, LaunchSpec, PlanError, cards, environment, flag, refuse_owned

OWNED_FLAGS = (
    "--host",
    "--port",
    "--api-key",
    "--served-model-name",
    "--model",
    "--tensor-parallel-size",
    "-tp",
    "--pipeline-parallel-size",
    "-pp",
    "--data-parallel-size",
    "-dp",
    "--enable-expert-parallel",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--headless",
    "--max-model-len",
    "--gpu-memory-utilization",
    "--dtype",
    "--quantization",
    "-q",
    "--kv-cache-dtype",
    "--config",
    "--uds",
)


def plan(spec: LaunchSpec) -> Launch:
    problems = refuse_owned(spec, OWNED_FLAGS)
    if problems:
        raise PlanError(problems)
    profile = spec.profile
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
    if spec.nodes > 1 and spec.rendezvous:
        address, port = spec.rendezvous
        argv += ["--nnodes", str(spec.nodes), "--node-rank", str(spec.rank)]
        argv += ["--master-addr", address, "--master-port", str(port)]
        if spec.rank > 0:
            argv += ["--headless"]
    owned = cards(spec) if profile.gpus_total else {}
    if spec.engine_key:
        owned["VLLM_API_KEY"] = spec.engine_key
    if spec.nodes > 1:
        owned["VLLM_HOST_IP"] = spec.address
    return Launch(argv=(*argv, *profile.extra_args), env=environment(spec, owned, secrets=["VLLM_API_KEY"]))
