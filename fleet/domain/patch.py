"""RFC 7396: a change given as the part that shall be different."""

from typing import Any


def merged(value: Any, patch: Any) -> Any:
    """`value` with what `patch` names: mappings are merged, null takes away, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    out = dict(value) if isinstance(value, dict) else {}
    for name, part in patch.items():
        if part is None:
            out.pop(name, None)
        else:
            out[name] = merged(out.get(name), part)
    return out
