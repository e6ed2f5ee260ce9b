"""Could this node run a profile, and why not: what `validate` adds to the profile's own rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from agent_client import preflight
from agent_client.config import AgentConfig
from agent_client.engines import Launch, internal_ports, plan
from agent_client.engines.preview import stand_in_cards
from agent_client.installed import Installed
from agent_client.launching import launch_spec
from agent_client.profile import NvlinkRule, Problem, Profile
from agent_client.profile.memory import MemoryEstimate
from agent_client.protocol.messages import ShardSpec
from agent_client.protocol.states import FailureCode

Gpu = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """`ranks`: the launch of each rank, as on this node; empty when no command can be made."""

    problems: tuple[Problem, ...]
    ranks: tuple[Launch, ...]
    estimate: MemoryEstimate
    warnings: tuple[Problem, ...] = ()


def check(
    config: AgentConfig,
    profile: Profile,
    inventory: Mapping[str, Any],
    *,
    served_names: tuple[str, ...] = ("model",),
    installed: Installed | None = None,
) -> Fit:
    """With stand-ins for what the control plane gives: the key, the address of the first rank, cards where none fit.

    Where no cards are free, those of the class are still judged by: what is wrong with the model shows at once.
    """
    cards, against = choose(profile, inventory)
    judged = cards or _of_class(profile, inventory)[: profile.gpus_per_node]
    spec = ShardSpec(
        replica=f"{served_names[0]}/1",
        served_names=served_names,
        profile={},
        nodes=profile.nodes,
        gpus=tuple(str(gpu["uuid"]) for gpu in judged),
        engine_key="(made for each replica)",
        rendezvous_address=config.mgmt_addr,
        rendezvous_port=config.policy.ports[-1] - 1 if profile.nodes > 1 else None,
    )
    checked = preflight.check(config, profile, spec, inventory, (), installed=installed)
    of_cards = (FailureCode.GPU_MISSING, FailureCode.GPU_BUSY, FailureCode.MEMORY_TAKEN)
    found = [problem for problem in checked.problems if against is None or problem.code not in of_cards]
    if checked.launch is None:
        ranks: tuple[Launch, ...] = ()
    else:
        gpus = spec.gpus or stand_in_cards(profile)
        ranks = tuple(_launch(config, profile, replace(spec, rank=n, gpus=gpus)) for n in range(profile.nodes))
    problems = ((against,) if against else ()) + tuple(found)
    return Fit(problems=problems, ranks=ranks, estimate=checked.estimate, warnings=checked.warnings)


def _launch(config: AgentConfig, profile: Profile, spec: ShardSpec) -> Launch:
    first = config.policy.ports[0]
    ports = range(first, first + 1 + internal_ports(profile))
    command = preflight.named_command(config, profile.engine)
    return plan(launch_spec(config, spec, profile, ports=ports, command=command))


def _of_class(profile: Profile, inventory: Mapping[str, Any]) -> Sequence[Gpu]:
    units = [gpu for gpu in inventory.get("gpus", ()) if gpu.get("class") and gpu.get("mig_mode") != "enabled"]
    return [gpu for gpu in units if not profile.gpu_class or gpu["class"] in profile.gpu_class]


def choose(profile: Profile, inventory: Mapping[str, Any]) -> tuple[Sequence[Gpu], Problem | None]:
    """Cards for one rank, as placement would take them: free, of one class, of one NVLink domain where it must be."""
    need = profile.gpus_per_node
    if need == 0:
        return (), None
    units = [gpu for gpu in inventory.get("gpus", ()) if gpu.get("class") and gpu.get("mig_mode") != "enabled"]
    present = sorted({str(gpu["class"]) for gpu in units})
    wanted = profile.gpu_class or tuple(present)
    if not present:
        return (), _problem("no_gpus", "this node has no GPUs", "use a node that has, or set gpus: 0")
    if not set(wanted) & set(present):
        text = f"this node has {', '.join(present)}, {' or '.join(wanted)} is needed"
        return (), _problem("no_class", text, "name a class that this node has")
    best: tuple[int, str, str, str] = (-1, "", "", "")
    for gpu_class in wanted:
        of_class = [gpu for gpu in units if gpu["class"] == gpu_class]
        free = [gpu for gpu in of_class if _against(gpu, profile) is None]
        for group in _groups(free, profile):
            if len(group) >= need:
                return group[:need], None
        if scattered := _scattered(free, profile):
            return scattered, None
        against = [(gpu["index"], found) for gpu in of_class if (found := _against(gpu, profile))]
        why = [f"GPU {index} {found.text}" for index, found in against]
        largest = max((len(group) for group in _groups(free, profile)), default=0)
        where = " in one NVLink domain" if largest < len(free) else ""
        text = f"{largest} fitting {gpu_class}{where}, {need} needed" + (f" ({'; '.join(why[:4])})" if why else "")
        hint = _hint(profile, [found for _, found in against], enough=len(of_class) >= need, split=bool(where))
        best = max(best, (largest, "too_few_free", f"this node has {text}", hint))
    return (), _problem(best[1], best[2], best[3])


def _scattered(free: Sequence[Gpu], profile: Profile) -> list[Gpu]:
    """Whole tensor-parallel groups from several domains: a pipeline's stages need no NVLink between them."""
    out: list[Gpu] = []
    for domain in _groups(free, profile):
        out += domain[: len(domain) // profile.group * profile.group]
    return out[: profile.gpus_per_node] if len(out) >= profile.gpus_per_node > profile.group else []


def _groups(free: Sequence[Gpu], profile: Profile) -> list[list[Gpu]]:
    if profile.group == 1 or profile.nvlink is NvlinkRule.OFF:
        return [list(free)]
    groups: dict[str, list[Gpu]] = {}
    unknown = [gpu for gpu in free if gpu.get("domain") is None]
    for gpu in free:
        groups.setdefault(str(gpu.get("domain") or f"alone {gpu['uuid']}"), []).append(gpu)
    out = sorted(groups.values(), key=len)
    return [*out, unknown] if profile.nvlink is NvlinkRule.PREFER and profile.gpus_per_node == 2 else out


class _Against(NamedTuple):
    """Why a card can't be taken, in words that follow its number, and what could be done."""

    text: str
    hint: str


def _against(gpu: Gpu, profile: Profile) -> _Against | None:
    if not gpu.get("placeable"):
        text = next((str(problem["text"]) for problem in gpu.get("problems", ())), "is not placeable")
        return _Against(text, "see the cards' problems in `inventory`")
    foreign = next((each for each in gpu.get("processes", ()) if each.get("foreign")), None)
    if foreign is not None:
        text = f"is used by {foreign.get('name') or 'a process'} (pid {foreign.get('pid')})"
        return _Against(text, "end what uses the cards")
    if old := preflight.too_old(profile, gpu):
        return _Against(old, "lower min_compute_capability, or use a node with newer cards")
    total, used = gpu.get("memory_total_mib"), gpu.get("memory_used_mib")
    need = profile.memory_mib_per_gpu
    if need is not None and total is not None and total - (used or 0) < need:
        hint = "lower memory_mib_per_gpu" if total < need else "end what uses the cards' memory"
        return _Against(f"has {total - (used or 0)} MiB free, {need} MiB needed", hint)
    return None


def _hint(profile: Profile, against: Sequence[_Against], *, enough: bool, split: bool) -> str:
    """What can be changed: what stands against the cards where there are enough, else what asks for so many."""
    if against and enough:
        return ", or ".join(dict.fromkeys(found.hint for found in against))
    fewer = f"lower {profile.counts_cards}" if profile.counts_cards else "use a node with more cards"
    return f"{fewer}, or set nvlink: off if the group may cross domains" if split else fewer


def _problem(code: str, text: str, hint: str) -> Problem:
    return Problem(code=code, field="node", text=f"cannot run here: {text}", hint=hint)
