"""The causes that an engine's own words give away: one row a wording.

`pattern` is searched in a line without its log prefix; its named groups fill `says`, which follows "cannot run X: ".
Rows of the second rank are consequences: they count only where no row of the first rank matches any line; those of the
third say only who died, and count where there is no exception either.
The wordings were taken from recorded outputs (tests/engines/data) and from the engines' sources.
"""

from agent_client.engines.causes import of_cards, of_files, of_node, of_profile
from agent_client.engines.causes.row import Cause, Scope

CAUSES: tuple[Cause, ...] = (*of_profile.ROWS, *of_files.ROWS, *of_node.ROWS, *of_cards.ROWS)

#: Codes after which another node may do better.
NODE_LOCAL_CAUSES = frozenset(row.code for row in CAUSES if row.scope is Scope.NODE)

__all__ = ["CAUSES", "NODE_LOCAL_CAUSES", "Cause", "Scope"]
