"""Fields of a profile that an engine has nothing for: refused by name. What people wrote is never silently dropped."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields

from agent_client.profile import Problem, Profile

_DEFAULTS = {item.name: item.default for item in fields(Profile)}
#: The word by which all engines are left to choose.
_AUTO = "auto"


def given(profile: Profile, field: str) -> bool:
    """Whether a field says something that an engine would have to heed."""
    return getattr(profile, field) not in (_DEFAULTS[field], _AUTO)


def unmapped(
    profile: Profile, engine: str, reasons: Mapping[str, tuple[str, str]], *, options: Collection[str] = ()
) -> Iterator[Problem]:
    """`reasons`: field → why the engine can't heed it, and what to do. `options`: the knobs that it does have."""
    for field, (why, hint) in reasons.items():
        if given(profile, field):
            text = f"cannot use {field} = {getattr(profile, field)} with {engine}: {why}"
            yield Problem(code="field_unsupported", field=f"profile.{field}", text=text, hint=hint)
    for name in profile.options:
        if name not in options:
            text = f"cannot use options.{name} with {engine}: it has no such option"
            hint = f"it has {', '.join(sorted(options))}" if options else "give the engine's own flag in extra_args"
            yield Problem(code="field_unsupported", field=f"profile.options.{name}", text=text, hint=hint)
