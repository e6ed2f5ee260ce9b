"""One GPU: whose it is, what is wrong with it, who had it; and how cards and ports read elsewhere."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from fleet.admin.display import facts, link, table, when
from fleet.admin.page import Act, Page, acts, sections
from fleet.models import Adapter, Gpu, GpuClaim
from fleet.snapshots import who


def page(gpu: Gpu, now: datetime) -> Page:
    """Of one GPU: whose it is, what is wrong with it, who had it."""
    claims = gpu.claims.select_related("shard__replica__model").order_by("-pk")[:20]
    held = next((claim.shard.replica for claim in claims if claim.released_at is None), None)
    name = f"{gpu.node.name} GPU {gpu.index}"
    if held is not None:
        said: SafeString | str = format_html("{} is held by {}.", name, link(held, held.label))
    elif not gpu.present:
        said = f"{name} is no longer reported."
    elif not gpu.placeable:
        said = f"{name} can't be used: {health(gpu)}."
    else:
        said = f"{name} is held by {nobody(gpu)}."
    cordon = "" if gpu.schedulable else "It is cordoned" + (f": {gpu.cordon_reason}." if gpu.cordon_reason else ".")
    drain: SafeString | str = ""
    if gpu.drain_deadline_at:
        drain = format_html(" What uses it is stopped {}.", when(gpu.drain_deadline_at, now))
    history = [
        (link(shard.replica, shard.replica.label), shard.epoch, when(claim.claimed_at, now), _end(claim, now))
        for claim, shard in ((claim, claim.shard) for claim in claims)
    ]
    processes = [
        (
            each.get("pid"),
            each.get("name"),
            each.get("user"),
            each.get("memory_mib"),
            _whose(each, gpu, held is not None),
        )
        for each in gpu.processes
        if isinstance(each, dict)
    ]
    known: list[tuple[str, object]] = [
        ("node", link(gpu.node, gpu.node.name)),
        ("card", gpu.name),
        ("class", gpu.gpu_class),
        ("memory", memory(gpu)),
        ("compute capability", gpu.compute_capability),
        ("NVLink domain", gpu.domain),
        ("MIG slice", gpu.mig.get("profile") if isinstance(gpu.mig, dict) else ""),
        ("bus", gpu.bus),
        ("NUMA node", gpu.numa),
        ("UUID", gpu.uuid),
    ]
    return Page(
        sentence=said,
        following=format_html("{}{}", cordon, drain),
        acts=acts(
            Act(action="drain", label="Drain …"),
            Act(action="cordon", label="Cordon") if gpu.schedulable else Act(action="uncordon", label="Uncordon"),
        ),
        sections=sections(
            ("What is wrong", told_problems(problems_of("", gpu.problems))),
            ("Processes", table(("pid", "name", "user", "MiB", "whose"), processes)),
            ("Who had it", table(("replica", "attempt", "from", "until"), history)),
            ("Facts", facts(known)),
        ),
    )


def _end(claim: GpuClaim, now: datetime) -> SafeString | str:
    return when(claim.released_at, now) if claim.released_at else "now"


def _whose(process: dict[str, Any], gpu: Gpu, held: bool) -> str:
    if process.get("foreign", True):
        return "someone else's"
    return "ours" if held or not gpu.node.orphans else "ours, of no replica"


def memory(gpu: Gpu) -> str:
    """Used and whole, in GiB."""
    if gpu.memory_total_mib is None:
        return "-"
    used = "-" if gpu.memory_used_mib is None else f"{gpu.memory_used_mib / 1024:.1f}"
    return f"{used} of {gpu.memory_total_mib / 1024:.1f} GiB"


def health(gpu: Gpu) -> str:
    if split(gpu):
        return "split into MIG slices, which are placed in its stead"
    return texts(gpu) or ("ok" if gpu.placeable else "not placeable")


def split(gpu: Gpu) -> bool:
    """A card that is not placed because its slices are: nothing is wrong with it."""
    return not gpu.placeable and not gpu.problems


def nobody(gpu: Gpu) -> str:
    """Of a card without a claim: whose it is then."""
    if not gpu.schedulable:
        return f"nobody; cordoned: {gpu.cordon_reason}" if gpu.cordon_reason else "nobody; cordoned"
    orphans = gpu.node.orphans
    theirs = [each for each in gpu.processes if isinstance(each, dict) and (each.get("foreign", True) or orphans)]
    if theirs:
        return who(theirs[0], orphans)
    return "nobody" if gpu.placeable else "-"


def texts(row: Gpu | Adapter) -> str:
    """Its problems, in words; who else uses a card is told where its holder is."""
    found = [problem for problem in row.problems if isinstance(problem, dict)]
    return "; ".join(str(problem.get("text", "")) for problem in found if problem.get("code") != "foreign_process")


def told_problems(problems: Iterable[tuple[str, str, str]]) -> SafeString:
    """Each with where it is and what helps."""
    return format_html_join(
        "",
        "<p>{}{}{}</p>",
        (
            (
                format_html("<b>{}</b> ", where) if where else "",
                text,
                format_html(' <span class="fleet-quiet">({})</span>', hint) if hint else "",
            )
            for where, text, hint in problems
        ),
    )


def problems_of(where: str, problems: Any) -> Iterator[tuple[str, str, str]]:
    for problem in problems:
        if isinstance(problem, dict):
            yield where, str(problem.get("text", "")), str(problem.get("hint", ""))
