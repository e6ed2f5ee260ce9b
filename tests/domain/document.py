"""Writes docs/states.md from the tables: `python -m tests.domain.document`."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from fleet.domain import states

PATH = Path(__file__).resolve().parents[2] / "docs" / "states.md"
E = TypeVar("E", bound=StrEnum)
HEAD = """# States

Few states, many reasons. People and the API write what is wished, agents report what is seen, and the reconciler alone
closes the gap. Reports are levels and may be lost, so a shard can be seen next in any later state. The database refuses
any other word, and `fleet/services/transitions.py` refuses any other move.

Written by `python -m tests.domain.document`; a test keeps it fresh.
"""
COMPUTED = "Computed from the shards, the wish and the node, in both directions: each state can follow each."


def text() -> str:
    return "\n".join(
        [
            HEAD,
            *_section("Node", states.NODE_TRANSITIONS, states.NODE_MEANINGS),
            *_section("Shard", states.SHARD_TRANSITIONS, states.SHARD_MEANINGS),
            *_section("Replica", states.REPLICA_TRANSITIONS, states.REPLICA_MEANINGS, COMPUTED),
            *_section("Rollout", states.ROLLOUT_TRANSITIONS, states.ROLLOUT_MEANINGS),
        ]
    )


def _section(title: str, table: Mapping[E, frozenset[E]], meanings: Mapping[E, str], about: str = "") -> list[str]:
    lines = [f"## {title}", "", *([about, ""] if about else [])]
    lines += ["| state | means |" if about else "| state | means | can become |"]
    lines += ["|---|---|" if about else "|---|---|---|"]
    for state, targets in table.items():
        row = f"| `{state}` | {meanings[state]} |"
        lines.append(row if about else f"{row} {_words(state, table, targets)} |")
    return [*lines, ""]


def _words(state: E, table: Mapping[E, frozenset[E]], targets: frozenset[E]) -> str:
    """The targets in the table's order; long lists as what is missing from them."""
    others = [other for other in table if other != state]
    missing = [other for other in others if other not in targets]
    if not targets:
        return "nothing: it has ended"
    if len(targets - {state}) > len(others) // 2:
        return "any other" + (f" but {', '.join(missing)}" if missing else "")
    return ", ".join(other for other in others if other in targets)


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
