"""What every adapter takes and gives, and the rules that all share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agent_client.engines.command import EnvVar, Origin, Word, origins
from agent_client.profile import Problem, Profile, ProfileError, SecretRef
from agent_client.profile.hidden import looks_secret


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
    command_origin: Origin = Origin.LLMGW
    internal_ports: tuple[int, ...] = ()  # as many as engines.internal_ports() says, one after the other
    engine_env: Mapping[str, str] = field(default_factory=dict)
    fabric_env: Mapping[str, str] = field(default_factory=dict)
    rendezvous: tuple[str, int] | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    python: str = "python3"
    programs: str = "agent_client/programs"  # folder of the engine programs that come with the agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """How an engine proves that it serves: health page, its list of models, one short answer."""

    health_path: str = "/health"
    models_path: str | None = "/v1/models"
    chat: bool = True
    answer_seconds: float = 30.0  # for the short answer: the first one may compile something
    one_at_a_time: bool = False  # a second request ends the first: once it serves it is not asked for a token


class Miss(StrEnum):
    """What kept an engine from proving that it serves."""

    REFUSED = "refused"  # nobody listens on its port
    SILENT = "silent"  # it takes connections and answers none
    STATUS = "status"  # a page that is no 200
    UNLISTED = "unlisted"  # the model is not in its list
    CHAT = "chat"  # the short answer failed
    BROKEN = "broken"  # what answers speaks something else


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What came of a question to an engine. `told` is said by strangers: it may hold secrets, and be long."""

    miss: Miss | None = None  # None: it serves
    told: str = ""  # "/health: connection refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    words: tuple[Word, ...]
    env: tuple[EnvVar, ...]
    readiness: Readiness = Readiness()

    @property
    def argv(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.words)

    @property
    def shown_argv(self) -> tuple[str, ...]:
        return tuple(word.shown for word in self.words)

    @property
    def origins(self) -> Mapping[str, Origin]:
        return origins(self.words, self.env)


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
    """The variables of an engine. What people wrote goes before what was worked out, llmgw's own before all.

    So: automatic, the fabric's, the node policy's, the profile's, `owned`; the later wins.

    What llmgw owns wins over all. Raises PlanError when the profile names a secret that this node does not hold.
    """
    rows: dict[str, EnvVar] = {}
    for origin, given in (
        (Origin.AUTOMATIC, automatic or {}),
        (Origin.FABRIC, spec.fabric_env),
        (Origin.NODE, spec.engine_env),
    ):
        for name, text in given.items():
            rows[name] = EnvVar(name=name, value=text, origin=origin, secret=looks_secret(name))
    missing = []
    for name, value in spec.profile.env.items():
        if not isinstance(value, SecretRef):
            rows[name] = EnvVar(name=name, value=value, origin=Origin.USER, secret=looks_secret(name))
        elif value.name in spec.secrets:
            rows[name] = EnvVar(name=name, value=spec.secrets[value.name], origin=Origin.USER, secret=True)
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
        rows[name] = EnvVar(name=name, value=text, origin=Origin.LLMGW, secret=name in hidden)
    return tuple(rows.values())


def command(spec: LaunchSpec, default: Iterable[str]) -> list[Word]:
    """The program's own words, before any argument."""
    if not spec.command:
        return [Word(text=text, origin=Origin.LLMGW) for text in default]
    return [Word(text=text, origin=spec.command_origin) for text in spec.command]


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
