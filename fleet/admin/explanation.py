"""The panel that says why a replica has no place, and what would help: as it was stored with the replica."""

from collections.abc import Mapping
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

#: So many nodes are told one by one.
TOLD_NODES = 50


def panel(explanation: Mapping[str, Any] | None) -> SafeString | str:
    if not explanation:
        return "-"
    nodes = explanation.get("nodes", [])
    helps = format_html_join("", "<li>{}</li>", ((each.get("text", ""),) for each in explanation.get("proposals", [])))
    rows = format_html_join("", "<li>{}</li>", ((node.get("text", ""),) for node in nodes[:TOLD_NODES]))
    more = format_html("<p>and {} nodes more</p>", len(nodes) - TOLD_NODES) if len(nodes) > TOLD_NODES else ""
    nothing = mark_safe("<p>No small change would make it fit.</p>") if "proposals" in explanation and nodes else ""
    return format_html(
        '<p>{}</p>{}<p>Hint: {}</p><p>Node by node:</p><ul class="fleet-list">{}</ul>{}',
        explanation.get("text", ""),
        format_html('<p>Would help:</p><ul class="fleet-list">{}</ul>', helps) if helps else nothing,
        explanation.get("hint") or "-",
        rows or mark_safe("<li>-</li>"),
        more,
    )
