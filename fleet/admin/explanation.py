"""The panel that says why a replica has no place, and what would help: as it was stored with the replica."""

from collections.abc import Mapping
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from fleet.admin.display import folded

#: So many nodes are told one by one, and so many without being asked.
TOLD_NODES, SHOWN_NODES = 50, 5


def panel(explanation: Mapping[str, Any] | None) -> SafeString | str:
    if not explanation:
        return "-"
    nodes = explanation.get("nodes", [])
    helps = format_html_join("", "<li>{}</li>", ((each.get("text", ""),) for each in explanation.get("proposals", [])))
    rows = format_html_join("", "<li>{}</li>", ((node.get("text", ""),) for node in nodes[:TOLD_NODES]))
    more = format_html("<p>and {} nodes more</p>", len(nodes) - TOLD_NODES) if len(nodes) > TOLD_NODES else ""
    nothing = mark_safe("<p>No small change would make it fit.</p>") if "proposals" in explanation and nodes else ""
    told = format_html('<ul class="fleet-list">{}</ul>{}', rows, more) if rows else ""
    each = (
        folded("node-by-node", f"Node by node ({len(nodes)})", told, opened=len(nodes) <= SHOWN_NODES) if told else ""
    )
    return format_html(
        "<p>{}</p>{}{}{}",
        explanation.get("text", ""),
        format_html('<p>Would help:</p><ul class="fleet-list">{}</ul>', helps) if helps else nothing,
        format_html("<p>Hint: {}</p>", explanation["hint"]) if explanation.get("hint") else "",
        each,
    )
