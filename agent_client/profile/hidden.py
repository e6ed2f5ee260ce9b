"""What of a profile is not shown: values whose name says that they are secrets. The name is what people are told."""

from collections.abc import Mapping, Sequence
from typing import Any

SECRET = "(secret)"  # noqa: S105  (what stands in its place)
_WORDS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")
_ENDS = ("-token", "-key", "-password", "-secret")


def looks_secret(name: str) -> bool:
    """Of a variable."""
    return any(word in name.upper() for word in _WORDS)


def flag_hides(flag: str) -> bool:
    """Of an argument: the value after it, or after its `=`."""
    return flag.startswith("--") and flag.endswith(_ENDS)


def shown_profile(profile: Mapping[str, Any]) -> dict[str, Any]:
    """The plain data of a profile without its secrets; what is none of that shape stays as it is."""
    out = dict(profile)
    if isinstance(env := out.get("env"), Mapping):
        out["env"] = {
            name: SECRET if looks_secret(str(name)) and not isinstance(value, Mapping) else value
            for name, value in env.items()
        }
    if isinstance(words := out.get("extra_args"), Sequence) and not isinstance(words, str):
        out["extra_args"] = shown_words([str(word) for word in words])
    return out


def shown_words(words: Sequence[str]) -> list[str]:
    out: list[str] = []
    hidden = False
    for word in words:
        flag, equals, _ = word.partition("=")
        secret = flag_hides(flag)
        out.append(SECRET if hidden else f"{flag}={SECRET}" if secret and equals else word)
        hidden = secret and not equals
    return out


def secrets_of(profile: Mapping[str, Any]) -> list[str]:
    """The values themselves, to be blackened where a text may hold one. The profile may be of any shape."""
    env = profile.get("env")
    found = [value for name, value in env.items() if looks_secret(str(name))] if isinstance(env, Mapping) else []
    words = profile.get("extra_args")
    listed = [str(word) for word in words] if isinstance(words, Sequence) and not isinstance(words, str) else []
    hidden = zip(listed, shown_words(listed), strict=True)
    found += [word.partition("=")[2] if shown != SECRET else word for word, shown in hidden if word != shown]
    return [value for value in found if isinstance(value, str)]
