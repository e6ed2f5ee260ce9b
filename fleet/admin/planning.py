"""What a copy of a profile would get now: nodes, cards and environment, or why nothing fits and what would help."""

from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from fleet.admin.display import folded, table
from fleet.admin.explanation import panel
from fleet.domain.reasons import Refusal
from fleet.services import explanations
from fleet.services.errors import FleetError


def plan(name: str, draft: Any = None) -> SafeString | str:
    """Of the stored profile, or of a draft."""
    try:
        found = explanations.plan(name, draft=draft)
    except FleetError as error:
        return f"{error.detail} {error.hint}".strip()
    if isinstance(found.found, Refusal):
        return panel(found.found.to_json())
    rows = [(rank.rank, rank.node, _cards(rank.gpus)) for rank in found.ranks]
    fabric = f" They meet on {found.found.fabric}." if found.found.fabric else ""
    ends = f" It would end {', '.join(found.preempts)}." if found.preempts else ""
    where = format_html("<p>It fits.{}{}</p>{}", fabric, ends, table(("rank", "node", "GPUs"), rows))
    env = [
        folded(
            f"plan-env-{rank.rank}",
            f"Environment of rank {rank.rank}",
            table(("name", "value", "decided by"), [(row.name, row.value, row.origin) for row in rank.environment]),
        )
        for rank in found.ranks
        if rank.environment
    ]
    return format_html("{}{}", where, format_html_join("", "{}", ((each,) for each in env)))


def _cards(gpus: tuple[tuple[int, str], ...]) -> str:
    return ", ".join(str(index) for index, _ in gpus) or "CPU"
