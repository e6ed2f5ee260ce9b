"""An engine profile: how to run a model. Every rule that needs neither the node nor the model's files stands here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from agent_client.profile.problems import Fields, Problem, ProfileError


class EngineKind(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    ECHO = "echo"
    CUSTOM = "custom"


class NvlinkRule(StrEnum):
    REQUIRE = "require"  # a tensor-parallel group sits inside one NVLink domain
    PREFER = "prefer"  # PCIe is accepted for groups of two when the topology is unknown
    OFF = "off"  # the group may cross domains


class Arrangement(StrEnum):
    PACK = "pack"  # fill what is begun, so that large holes stay whole
    SPREAD = "spread"  # copies of one model on as many nodes as there are


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRef:
    """Stands for a value that the node's own configuration holds; it never travels."""

    name: str


#: Variables that llmgw sets itself: a profile that set them would run on other cards or answer to other keys.
OWNED_ENV = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "VLLM_API_KEY", "LLAMA_API_KEY", "LLMGW_*", "VLLM_PORT")
#: As the hub spells ids: at most 96 characters a part, no part of dots alone.
_HUB_ID = re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,96}/(?!\.)[A-Za-z0-9_.-]{1,96}\Z")
#: Of an address on the engine, as it stands in a request line.
_PATH = re.compile(r"/[!-~]*\Z")
_HUB_REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_CAPABILITY = re.compile(r"[1-9][0-9]?\.[0-9]\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Memory in MiB, times in seconds. `gpus` None means tensor x pipeline x data parallel; 0 is a CPU replica.

    `affinity` and `anti_affinity` name models: only on nodes where all of the one run, and none of the other. A model's
    own name in `affinity` binds from its second copy on.
    """

    engine: EngineKind
    model: str = ""  # a path on the node, or a hub id such as org/name
    model_revision: str | None = None  # branch, tag or commit of a hub id
    model_files: tuple[str, ...] = ()  # patterns over a hub id's files
    gpu_class: tuple[str, ...] = ()
    gpus: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    nodes: int = 1
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    memory_mib_per_gpu: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    nvlink: NvlinkRule = NvlinkRule.REQUIRE
    node_selector: Mapping[str, str] = field(default_factory=dict)
    min_compute_capability: str | None = None  # "9.0"; a card that does not tell its own is refused
    arrangement: Arrangement = Arrangement.PACK
    affinity: tuple[str, ...] = ()
    anti_affinity: tuple[str, ...] = ()
    priority: int = 0  # among replicas; counts only where a profile preempts
    preempts: bool = False  # may end replicas of lower priority when nothing else fits
    extra_args: tuple[str, ...] = ()
    env: Mapping[str, str | SecretRef] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # knobs of one engine kind
    start_timeout_seconds: int = 1800
    drain_timeout_seconds: int = 600
    stop_grace_seconds: int = 30

    @property
    def from_hub(self) -> bool:
        """The model is named by a hub id, not by a path. What echo and custom engines name is their own matter."""
        return self.engine not in (EngineKind.ECHO, EngineKind.CUSTOM) and bool(_HUB_ID.match(self.model))

    @property
    def gpus_total(self) -> int:
        if self.gpus is not None:
            return self.gpus
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def counts_cards(self) -> str:
        """The fields that ask for more than one card, for a hint: "tensor_parallel or pipeline_parallel"."""
        names = ("tensor_parallel", "pipeline_parallel", "data_parallel")
        large = [name for name in names if getattr(self, name) > 1]
        return " or ".join(large or ["gpus"]) if self.gpus_total > 1 else ""

    @property
    def gpus_per_node(self) -> int:
        return self.gpus_total // self.nodes

    @property
    def group(self) -> int:
        """Cards that must reach each other over NVLink; without parallel sizes the engine cuts as it likes."""
        world = self.tensor_parallel * self.pipeline_parallel * self.data_parallel
        return self.tensor_parallel if world > 1 else max(self.gpus_per_node, 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that parse_profile reads back to an equal profile; defaults are left out."""
        out: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            default = item.default_factory() if callable(item.default_factory) else item.default
            if value != default:
                out[item.name] = _plain(value)
        return out


def parse_profile(data: Any) -> Profile:
    """Read a profile; raises ProfileError with every problem at once."""
    problems: list[Problem] = []
    profile = read_profile(data, "profile", problems)
    if problems or profile is None:
        raise ProfileError(problems)
    return profile


def read_profile(data: Any, where: str, problems: list[Problem]) -> Profile | None:
    """As parse_profile, noting problems in the caller's list."""
    before = len(problems)
    given = Fields(data, where, problems)
    engine = given.choice("engine", EngineKind)
    values: dict[str, Any] = {
        "model": given.text("model", required=_needs_model(engine, given)),
        "model_revision": given.text("model_revision") or None,
        "model_files": given.texts("model_files", single=True),
        "gpu_class": given.texts("gpu_class", single=True),
        "gpus": given.integer("gpus", None, least=0, most=4096),
        "nodes": given.integer("nodes", 1, least=1, most=512),
        "max_model_len": given.integer("max_model_len", None, least=1),
        "gpu_memory_utilization": given.number("gpu_memory_utilization", None, above=0, most=1),
        "memory_mib_per_gpu": given.integer("memory_mib_per_gpu", None, least=1),
        "expert_parallel": given.boolean("expert_parallel", False),
        "nvlink": NvlinkRule(given.choice("nvlink", NvlinkRule, NvlinkRule.REQUIRE) or NvlinkRule.REQUIRE),
        "extra_args": given.texts("extra_args"),
        "options": _options(given, engine),
        "node_selector": _selector(given),
        "min_compute_capability": _capability(given),
        "arrangement": Arrangement(given.choice("arrangement", Arrangement, Arrangement.PACK) or Arrangement.PACK),
        "affinity": given.texts("affinity", single=True),
        "anti_affinity": given.texts("anti_affinity", single=True),
        "priority": given.integer("priority", 0, least=-1000, most=1000),
        "preempts": given.boolean("preempts", False),
        "env": _env(given),
    }
    for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        values[name] = given.integer(name, 1, least=1, most=1024)
    for name in ("dtype", "quantization", "kv_cache_dtype"):
        values[name] = given.text(name) or None
    for name, default, least in (
        ("start_timeout_seconds", 1800, 1),
        ("drain_timeout_seconds", 600, 0),
        ("stop_grace_seconds", 30, 0),
    ):
        values[name] = given.integer(name, default, least=least, most=7 * 86_400)
    given.refuse_unknown()
    if engine is None or len(problems) > before:
        return None
    profile = Profile(engine=EngineKind(engine), **values)
    _check(profile, given)
    return profile if len(problems) == before else None


def _check(profile: Profile, given: Fields) -> None:
    world = profile.tensor_parallel * profile.pipeline_parallel * profile.data_parallel
    if profile.gpus not in (None, 0) and world > 1 and profile.gpus != world:
        given.note(
            "gpus_differ",
            "gpus",
            f"cannot use {given.where}.gpus = {profile.gpus}: tensor x pipeline x data parallel is {world}",
            "leave `gpus` out",
        )
    if profile.gpus_total % profile.nodes:
        given.note(
            "nodes_not_divisible",
            "nodes",
            f"cannot use {given.where}.nodes = {profile.nodes}: {profile.gpus_total} GPUs do not divide by it",
        )
    if profile.nodes > 1 and profile.engine not in (EngineKind.VLLM, EngineKind.SGLANG):
        given.note(
            "nodes_unsupported",
            "nodes",
            f"cannot use {given.where}.nodes > 1 with {profile.engine}: it runs on one node",
        )
    for name, value in (("model_revision", profile.model_revision), ("model_files", profile.model_files)):
        if value and not profile.from_hub:
            text = f"cannot use {given.where}.{name}: {profile.model or 'the model'} is no hub id such as org/name"
            given.note("not_from_hub", name, text, "leave it out for a path")
    if profile.model_revision and not _HUB_REVISION.match(profile.model_revision):
        text = (
            f"cannot use {given.where}.model_revision = {profile.model_revision!r}: a branch, tag or commit is needed"
        )
        given.note("bad_value", "model_revision", text)
    if profile.gpus_total == 0 and profile.gpu_class:
        given.note("class_without_gpus", "gpu_class", f"cannot use {given.where}.gpu_class: the profile uses no GPU")
    if profile.gpus_total == 0 and profile.min_compute_capability:
        text = f"cannot use {given.where}.min_compute_capability: the profile uses no GPU"
        given.note("capability_without_gpus", "min_compute_capability", text)
    both = sorted(set(profile.affinity) & set(profile.anti_affinity))
    if both:
        text = f"cannot use {given.where}.anti_affinity: {', '.join(both)} also stands in affinity"
        given.note("affinity_both", "anti_affinity", text, "name a model in one of the two")
    if profile.engine is EngineKind.CUSTOM and not profile.options.get("command"):
        given.note(
            "missing",
            "options.command",
            f"cannot use {given.where}: a custom engine needs options.command",
            'a list such as ["my-server", "--port", "{port}"]',
        )


def _needs_model(engine: str | None, given: Fields) -> bool:
    """Of an engine that is not known nobody knows."""
    return engine not in (EngineKind.ECHO, EngineKind.CUSTOM) and not (engine is None and given.has("engine"))


def _options(given: Fields, engine: str | None) -> dict[str, Any]:
    """Those of the engine kind; a name that it does not have is its adapter's to refuse."""
    options = dict(given.mapping("options"))
    inner = Fields(options, f"{given.where}.options", given.problems)
    if engine == EngineKind.LLAMACPP:
        inner.integer("parallel", None, least=1, most=1024)
    if engine == EngineKind.CUSTOM:
        inner.texts("command")
        inner.boolean("probe", True)
        for name in ("health_path", "models_path"):
            path = inner.text(name)
            if path and not _PATH.match(path):
                text = f"cannot use {inner.where}.{name} = {path!r}: the path of an address is needed"
                inner.note("bad_value", name, text, "such as /health")
    return options


def _selector(given: Fields) -> dict[str, str]:
    out = {}
    for key, value in given.mapping("node_selector").items():
        if not key.strip():
            given.note("bad_value", "node_selector", f"cannot use {given.where}.node_selector: a label has no name")
            continue
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            given.note(
                "bad_value",
                f"node_selector.{key[:80]}",
                f"cannot use {given.where}.node_selector: the value of {key[:80]!r} must be text",
            )
            continue
        out[key] = str(value)
    return out


def _capability(given: Fields) -> str | None:
    """As CUDA writes it; YAML makes a number of 9.0."""
    value = given.raw("min_compute_capability")
    if value is None:
        return None
    text = str(value)
    if isinstance(value, bool) or not _CAPABILITY.match(text):
        shown = f"cannot use {given.where}.min_compute_capability = {value!r}"
        given.note("bad_value", "min_compute_capability", f'{shown}: a version such as "9.0" is needed')
        return None
    return text


def _env(given: Fields) -> dict[str, str | SecretRef]:
    out: dict[str, str | SecretRef] = {}
    for key, value in given.mapping("env").items():
        where = f"{given.where}.env.{key}"
        if not _ENV_NAME.match(key):
            text = f"cannot use {given.where}.env: {key[:80]!r} is no name of a variable"
            given.note("bad_env_name", f"env.{key[:80]}", text, "letters, digits and _, no digit first")
        elif any(key == owned or (owned.endswith("*") and key.startswith(owned[:-1])) for owned in OWNED_ENV):
            given.note("env_owned", f"env.{key}", f"cannot use {where}: llmgw sets {key} itself")
        elif isinstance(value, Mapping) and set(value) == {"secret"} and _named(value["secret"]):
            out[key] = SecretRef(name=value["secret"])
        elif isinstance(value, str | int | float) and not isinstance(value, bool) and "\x00" not in str(value):
            out[key] = str(value)
        else:
            given.note("bad_value", f"env.{key}", f"cannot use {where}: text or {{secret: NAME}} is needed")
    return out


def _named(secret: Any) -> bool:
    return isinstance(secret, str) and bool(secret.strip()) and "\x00" not in secret


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, SecretRef):
        return {"secret": value.name}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
