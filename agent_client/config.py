"""What the node's owner decides: flags over environment (LLMGW_AGENT_*) over agent.yaml."""

import difflib
import fnmatch
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent_client.yaml_text import UnreadableYaml, read_yaml_file

DEFAULT_SERVER = "ws://127.0.0.1:8000"
DEFAULT_PORTS = range(20000, 21000)  # below Linux's ephemeral range, 32768 to 60999
PREFIX = "LLMGW_AGENT_"
SEVERITIES = ("unplaceable", "warning", "ignore")


class ConfigError(ValueError):
    """cannot use the agent's configuration."""


#: Between two looks at the hardware, where they cost little: a card that hangs for 5 s is found within ten.
DISCOVERY_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricLabel:
    name: str
    hcas: tuple[str, ...]  # regular expressions over whole HCA names


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePolicy:
    command: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPolicy:
    """Where models that are named by a hub id come from and go to."""

    cache: Path | None = None  # None: where the hub's own client keeps its files
    allow: tuple[str, ...] | None = None  # patterns over ids; None: any
    endpoint: str | None = None  # a mirror
    token_secret: str | None = None  # name under `secrets`


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may run here. No `engines` at all: every built-in kind that is installed, but never `custom`."""

    engines: Mapping[str, EnginePolicy] | None = None
    model_roots: tuple[Path, ...] = ()  # empty: any path
    extra_args: tuple[str, ...] | None = None  # None: any
    ports: range = DEFAULT_PORTS
    hub: HubPolicy | None = None  # None: the engine fetches, unless there are model_roots

    def against_hub(self, model: str) -> str | None:
        """Why the node's owner does not let this hub id be fetched, or None."""
        if self.hub is None:
            return "this node allows models under its model_roots only" if self.model_roots else None
        if self.hub.allow is not None and not any(fnmatch.fnmatch(model, pattern) for pattern in self.hub.allow):
            return f"this node allows {', '.join(self.hub.allow) or 'no models of a hub'} only"
        return None

    @property
    def roots(self) -> tuple[Path, ...]:
        """Where models may lie, what was fetched included; empty: anywhere."""
        cache = self.hub.cache if self.hub else None
        return (*self.model_roots, cache) if self.model_roots and cache else self.model_roots


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    server: str
    node_id: str
    mgmt_addr: str
    state_dir: Path
    join_secret: str | None = field(default=None, repr=False)
    fabrics: tuple[FabricLabel, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    expect_gpus: int | None = None
    expect_hcas: int | None = None
    gpu_classes: tuple[tuple[str, str], ...] = ()  # regular expression over a whole card name, its class
    severities: Mapping[str, str] = field(default_factory=dict)  # problem code → unplaceable, warning or ignore
    policy: Policy = Policy()
    secrets: Mapping[str, Path] = field(default_factory=dict)
    log_bytes: int = 64 * 1024 * 1024
    discovery_seconds: float = DISCOVERY_SECONDS
    ib_root: Path = Path("/sys/class/infiniband")

    def of_hardware(self) -> dict[str, Any]:
        """What discovery is told about the machine, by the names that it uses."""
        return {
            "node_id": self.node_id,
            "fabrics": tuple((label.name, label.hcas) for label in self.fabrics),
            "expect_gpus": self.expect_gpus,
            "expect_hcas": self.expect_hcas,
            "severities": self.severities,
            "gpu_classes": self.gpu_classes,
            "ib_root": self.ib_root,
        }


_KEYS = (
    "server",
    "node_id",
    "mgmt_addr",
    "state_dir",
    "join_secret_file",
    "fabrics",
    "labels",
    "expect",
    "gpu_classes",
    "severities",
    "policy",
    "secrets",
    "log_bytes",
    "discovery_seconds",
    "ib_root",
)
_POLICY_KEYS = ("engines", "model_roots", "extra_args", "ports", "hub")
_HUB_KEYS = ("cache", "allow", "endpoint", "token_secret")


def load(*, flags: Mapping[str, Any], environ: Mapping[str, str], path: Path | None) -> AgentConfig:
    """Read the configuration; raises ConfigError that names the key, the bad value and a good one."""
    data = _read_file(path)
    where = str(path) if path else "agent.yaml"
    _known(data, _KEYS, where)

    def pick(name: str) -> Any:
        if flags.get(name) is not None:
            return flags[name]
        return environ.get(PREFIX + name.upper()) or data.get(name)

    server = _server(str(pick("server") or DEFAULT_SERVER), insecure=environ.get("LLMGW_INSECURE_AGENTS") == "1")
    expect = _mapping(data, "expect", where)
    _known(expect, ("gpus", "hcas"), f"{where}: expect")
    log_bytes = data.get("log_bytes", 64 * 1024 * 1024)
    if not isinstance(log_bytes, int) or log_bytes < 65_536:
        raise ConfigError(f"cannot use {where}: log_bytes = {log_bytes!r}; at least 65536 is needed")
    return AgentConfig(
        server=server,
        node_id=str(pick("node_id") or socket.gethostname()),
        mgmt_addr=str(pick("mgmt_addr") or _default_address(server)),
        state_dir=Path(pick("state_dir") or _default_state_dir()).expanduser().absolute(),
        join_secret=_join_secret(pick("join_secret_file"), environ),
        fabrics=_fabrics(data.get("fabrics"), where),
        labels={str(k): str(v) for k, v in _mapping(data, "labels", where).items()},
        expect_gpus=_count(expect, "gpus", where),
        expect_hcas=_count(expect, "hcas", where),
        gpu_classes=_gpu_classes(_mapping(data, "gpu_classes", where), where),
        severities=_severities(_mapping(data, "severities", where), where),
        policy=_policy(_mapping(data, "policy", where), where),
        secrets={str(k): Path(str(v)) for k, v in _mapping(data, "secrets", where).items()},
        log_bytes=log_bytes,
        discovery_seconds=_discovery_seconds(pick("discovery_seconds"), where),
        ib_root=_folder(pick("ib_root"), "ib_root", where, "/sys/class/infiniband"),
    )


def _count(expect: Mapping[str, Any], key: str, where: str) -> int | None:
    value = expect.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ConfigError(f"cannot use {where}: expect.{key} = {value!r}; a number of cards such as 8 is needed")


def _discovery_seconds(value: Any, where: str) -> float:
    try:
        seconds = float(DISCOVERY_SECONDS if value is None else value)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 1 <= seconds <= 3600:
        raise ConfigError(f"cannot use {where}: discovery_seconds = {value!r}; 1 to 3600 are needed")
    return seconds


def _gpu_classes(given: Mapping[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    for pattern, gpu_class in given.items():
        try:
            re.compile(str(pattern))
        except re.error as error:
            raise ConfigError(
                f"cannot use {where}: gpu_classes: {pattern!r} is no regular expression: {error}"
            ) from None
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,79}", str(gpu_class)):
            good = "a word such as h100-sxm-80gb is needed"
            raise ConfigError(f"cannot use {where}: gpu_classes: {gpu_class!r}; {good}")
    return tuple((str(pattern), str(gpu_class)) for pattern, gpu_class in given.items())


def _severities(given: Mapping[str, Any], where: str) -> dict[str, str]:
    for code, severity in given.items():
        if severity not in SEVERITIES:
            raise ConfigError(f"cannot use {where}: severities.{code} = {severity!r}; one of {', '.join(SEVERITIES)}")
    return {str(code): str(severity) for code, severity in given.items()}


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        data = read_yaml_file(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give an existing file with --config") from None
    except UnreadableYaml as error:
        raise ConfigError(f"cannot read {path} as YAML: {error}") from None
    if data is not None and not isinstance(data, dict):
        raise ConfigError(f"cannot use {path}: keys and values are needed, such as `server: wss://llmgw.example.com`")
    return data or {}


def _known(data: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for name in data:
        if name not in keys:
            near = difflib.get_close_matches(str(name), keys, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(keys)}"
            raise ConfigError(f"cannot use {where}: `{name}` is not known; {hint}")


def _mapping(data: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    value = data.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"cannot use {where}: {name} = {value!r}; keys and values are needed")
    return value


def _server(url: str, *, insecure: bool) -> str:
    parts = urlsplit(url.rstrip("/"))
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ConfigError(f"cannot use server = {url!r}: give a URL such as wss://llmgw.example.com:8443")
    if parts.scheme == "ws" and not insecure and not _loopback(parts.hostname):
        raise ConfigError(
            f"cannot use server = {url!r}: plaintext is for loopback; use wss://, or set LLMGW_INSECURE_AGENTS=1 on a "
            "network that you trust"
        )
    return url.rstrip("/")


def _loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _default_address(server: str) -> str:
    """The address of the route to the server; loopback for a local one."""
    parts = urlsplit(server)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname or "127.0.0.1", parts.port or 443))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _default_state_dir() -> str:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "llmgw-agent")


def _join_secret(path: Any, environ: Mapping[str, str]) -> str | None:
    if path:
        try:
            return Path(str(path)).expanduser().read_text(encoding="utf-8").strip() or None
        except OSError as error:
            raise ConfigError(f"cannot read join_secret_file = {str(path)!r}: {error.strerror}") from None
    return environ.get(PREFIX + "JOIN_SECRET") or None


def _fabrics(value: Any, where: str) -> tuple[FabricLabel, ...]:
    out = []
    for item in value if isinstance(value, list) else [] if value is None else [value]:
        name, hcas = (item.get("name"), item.get("hcas")) if isinstance(item, dict) else (None, None)
        named = isinstance(name, str | int) and name != ""
        if not named or not isinstance(hcas, list) or not hcas or not all(isinstance(each, str) for each in hcas):
            raise ConfigError(f'cannot use {where}: fabrics = {item!r}; give {{name: ib-east, hcas: ["mlx5_[0-3]"]}}')
        _known(item, ("name", "hcas"), f"{where}: fabrics")
        out.append(FabricLabel(name=str(name), hcas=tuple(hcas)))
    return tuple(out)


def _folder(value: Any, key: str, where: str, default: str) -> Path:
    if value is None:
        return Path(default)
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"cannot use {where}: {key} = {value!r}; a folder such as {default} is needed")
    return Path(value)


def _policy(data: Mapping[str, Any], where: str) -> Policy:
    _known(data, _POLICY_KEYS, f"{where}: policy")
    engines: dict[str, EnginePolicy] | None = None
    if data.get("engines") is not None:
        engines = {}
        for kind, item in _mapping(data, "engines", where).items():
            given = item or {}
            command = given.get("command")
            if command is not None and (not isinstance(command, list) or not command):
                raise ConfigError(f"cannot use {where}: policy.engines.{kind}.command must be a list of words")
            env = {str(k): str(v) for k, v in (given.get("env") or {}).items()}
            engines[str(kind)] = EnginePolicy(command=tuple(map(str, command)) if command else None, env=env)
    args = data.get("extra_args")
    hub = _hub(_mapping(data, "hub", where), where) if data.get("hub") is not None else None
    if hub is not None and hub.cache is None and data.get("model_roots"):
        raise ConfigError(
            f"cannot use {where}: beside policy.model_roots, policy.hub needs a cache such as /models/hub"
        )
    return Policy(
        engines=engines,
        model_roots=tuple(Path(str(root)) for root in data.get("model_roots") or []),
        extra_args=None if args is None else tuple(map(str, args)),
        ports=_ports(data.get("ports"), where),
        hub=hub,
    )


def _hub(data: Mapping[str, Any], where: str) -> HubPolicy:
    _known(data, _HUB_KEYS, f"{where}: policy.hub")
    allow, endpoint = data.get("allow"), data.get("endpoint")
    if allow is not None and not isinstance(allow, list):
        raise ConfigError(f'cannot use {where}: policy.hub.allow = {allow!r}; give a list such as ["Qwen/*"]')
    if endpoint is not None and urlsplit(str(endpoint)).scheme not in ("http", "https"):
        raise ConfigError(f"cannot use {where}: policy.hub.endpoint = {endpoint!r}; give a URL such as https://hub.lan")
    return HubPolicy(
        cache=Path(str(data["cache"])).expanduser() if data.get("cache") else None,
        allow=None if allow is None else tuple(map(str, allow)),
        endpoint=None if endpoint is None else str(endpoint).rstrip("/"),
        token_secret=str(data["token_secret"]) if data.get("token_secret") else None,
    )


def _ports(value: Any, where: str) -> range:
    if value is None:
        return DEFAULT_PORTS
    first, _, last = str(value).partition("-")
    if first.isdecimal() and last.isdecimal() and 1024 <= int(first) <= int(last) <= 65535:
        return range(int(first), int(last) + 1)
    raise ConfigError(f"cannot use {where}: policy.ports = {value!r}; give a range such as 20000-20999")
