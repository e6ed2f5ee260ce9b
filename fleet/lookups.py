"""Which columns a list of the admin may be asked by: those that its page offers, and no other.

Django lets an address ask by every column of a table. One that is not shown can be read that way, too: each answer to
`?engine_key__startswith=a` tells a letter.
"""

from typing import Any


class OfferedLookups:
    """Mix it in before the admin class."""

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        owner: Any = self
        filters = [each if isinstance(each, str) else each[0] for each in owner.get_list_filter(request)]
        offered = [name for name in (*filters, owner.date_hierarchy, "pk", "id") if name]
        if not any(lookup == name or lookup.startswith(f"{name}__") for name in offered):
            return False
        return bool(super().lookup_allowed(lookup, value, request))  # type: ignore[misc]
