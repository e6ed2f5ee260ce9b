"""The built-in echo engine: no model at all; it says back what it is asked. For trying llmgw out, and for its tests."""

from agent_client.engines.base import Launch, LaunchSpec, PlanError, environment, refuse_owned

PROGRAM = "echo_server.py"
OWNED_FLAGS = ("--host", "--port", "--served-model-name")


def plan(spec: LaunchSpec) -> Launch:
    problems = refuse_owned(spec, OWNED_FLAGS)
    if problems:
        raise PlanError(problems)
    argv = [
        *(spec.command or (spec.python, f"{spec.programs}/{PROGRAM}")),
        "--host",
        spec.address,
        "--port",
        str(spec.port),
    ]
    argv += ["--served-model-name", *spec.served_names]
    owned = {"LLMGW_ENGINE_KEY": spec.engine_key} if spec.engine_key else {}
    return Launch(argv=(*argv, *spec.profile.extra_args), env=environment(spec, owned, secrets=["LLMGW_ENGINE_KEY"]))
