"""What every adapter takes and gives, and the rules that all share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_client.profile import Problem, Profile, ProfileError, SecretRef


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One shard to launch, with all that the node knows about it."""

    replica: str
    served_names: tuple[str, ...]
    profile: Profile
    port: int
    address: str = "127.0.0.1"  # to listen on
    rank: int = 0
    nodes: int = 1
    gpus: tuple[str, ...] = ()  # UUIDs
    engine_key: str | None = field(default=None, repr=False)
    command: tuple[str, ...] = ()  # the node policy's command for this engine, or the default one
    engine_env: Mapping[str, str] = field(default_factory=dict)
    fabric_env: Mapping[str, str] = field(default_factory=dict)
    rendezvous: tuple[str, int] | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    python: str = "python3"
    programs: str = "agent_client/programs"  # folder of the engine programs that come with the agent


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVar:
    name: str
    value: str
    origin: str  # profile, node policy, fabric, automatic, llmgw
    secret: bool = False

    @property
    def shown(self) -> str:
        return "(secret)" if self.secret else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """How an engine proves that it serves: health page, its list of models, one short answer."""

    health_path: str = "/health"
    models_path: str | None = "/v1/models"
    chat: bool = True
    one_at_a_time: bool = False  # a second request ends the first: once it serves it is not asked for a token


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    argv: tuple[str, ...]
    env: tuple[EnvVar, ...]
    readiness: Readiness = Readiness()
    secret_words: frozenset[int] = frozenset()  # places in argv that must not be shown

    @property
    def shown_argv(self) -> tuple[str, ...]:
        return tuple("(secret)" if n in self.secret_words else word for n, word in enumerate(self.argv))


Adapter = Callable[[LaunchSpec], Launch]


class PlanError(ProfileError):
    """cannot build the command; `problems` says why."""


def environment(
    spec: LaunchSpec,
    owned: Mapping[str, str],
    *,
    automatic: Mapping[str, str] | None = None,
    secrets: Iterable[str] = (),
) -> tuple[EnvVar, ...]:
    """The variables of an engine: the profile's win over the fabric's over the node policy's over the automatic ones.

    What llmgw owns wins over all. Raises PlanError when the profile names a secret that this node does not hold.
    """
    rows: dict[str, EnvVar] = {}
    for name, text in (automatic or {}).items():
        rows[name] = EnvVar(name=name, value=text, origin="automatic")
    for name, text in spec.engine_env.items():
        rows[name] = EnvVar(name=name, value=text, origin="node policy", secret=_looks_secret(name))
    for name, text in spec.fabric_env.items():
        rows[name] = EnvVar(name=name, value=text, origin="fabric")
    missing = []
    for name, value in spec.profile.env.items():
        if not isinstance(value, SecretRef):
            rows[name] = EnvVar(name=name, value=value, origin="profile", secret=_looks_secret(name))
        elif value.name in spec.secrets:
            rows[name] = EnvVar(name=name, value=spec.secrets[value.name], origin=f"secret {value.name}", secret=True)
        else:
            missing.append(
                Problem(
                    code="secret_missing",
                    field=f"profile.env.{name}",
                    text=f"cannot launch {spec.replica}: this node holds no secret {value.name!r}",
                    hint=f"name a file for it under `secrets:` in the node's agent.yaml: {{{value.name}: /path}}",
                )
            )
    if missing:
        raise PlanError(missing)
    hidden = set(secrets)
    for name, text in owned.items():
        rows[name] = EnvVar(name=name, value=text, origin="llmgw", secret=name in hidden)
    return tuple(rows.values())


def cards(spec: LaunchSpec) -> dict[str, str]:
    """Cards by UUID, since CUDA's own order is not nvidia-smi's. A CPU shard sees none."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(spec.gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def refuse(spec: LaunchSpec, problems: Iterable[Problem]) -> None:
    """Raise PlanError when there are any."""
    found = tuple(problems)
    if found:
        raise PlanError(found)


def rendezvous(spec: LaunchSpec) -> tuple[str, int] | None:
    """Where the ranks of a replica meet; None on one node. Raises PlanError when nobody said: each would run alone."""
    if spec.nodes == 1:
        return None
    if spec.rendezvous is None:
        text = f"cannot launch {spec.replica}: its {spec.nodes} nodes have no address and port to meet at"
        refuse(spec, [Problem(code="rendezvous_missing", field="profile.nodes", text=text)])
    return spec.rendezvous


def refuse_env(spec: LaunchSpec, owned: Iterable[str]) -> Iterable[Problem]:
    """Variables by which this engine would take what llmgw gives on its command line, or more."""
    for name in owned:
        if name in spec.profile.env:
            text = f"cannot use env {name}: the engine would read from it what llmgw sets itself"
            yield Problem(code="env_owned", field=f"profile.env.{name}", text=text, hint="leave it out")


def flag(name: str, value: Any) -> tuple[str, ...]:
    """`--name value`, or nothing for None."""
    return () if value is None else (name, str(value))


def _looks_secret(name: str) -> bool:
    return any(word in name.upper() for word in ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL"))
