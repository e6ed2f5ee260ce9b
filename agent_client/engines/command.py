"""The words and variables of a command, each with who decided it: that is what people ask first of a wrong value."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from agent_client.profile import Profile
from agent_client.profile.hidden import flag_hides


class Origin(StrEnum):
    USER = "user"  # the profile
    NODE = "node policy"  # the node's own file
    FABRIC = "fabric"  # the adapters that the replica's nodes share
    AUTOMATIC = "automatic"  # worked out from the node; a user's value goes before it
    LLMGW = "llmgw"  # what must be as it is for llmgw to work, the served name too; and what nobody said


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    text: str
    origin: Origin
    secret: bool = False

    @property
    def shown(self) -> str:
        return "(secret)" if self.secret else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVar:
    name: str
    value: str
    origin: Origin
    secret: bool = False

    @property
    def shown(self) -> str:
        return "(secret)" if self.secret else self.value


def ours(*texts: object, secret: bool = False) -> list[Word]:
    """Words that llmgw decides. Of several, only the last can be the secret."""
    last = len(texts) - 1
    return [Word(text=str(t), origin=Origin.LLMGW, secret=secret and n == last) for n, t in enumerate(texts)]


def asked(*texts: object) -> list[Word]:
    """Words that a user asked for; none at all when one of them is None, which is a field left out."""
    return [] if None in texts else [Word(text=str(text), origin=Origin.USER) for text in texts]


def either(flag: str, value: object, *, default: object) -> list[Word]:
    """A flag that the command always has: a user's word only where the value is another than llmgw's own."""
    return ours(flag, value) if value == default else asked(flag, value)


def extra(profile: Profile) -> list[Word]:
    """The profile's own arguments; the value of a flag such as --hf-token is not shown."""
    out: list[Word] = []
    hidden = False
    for text in profile.extra_args:
        flag, equals, _ = text.partition("=")
        secret = flag_hides(flag)
        out.append(Word(text=text, origin=Origin.USER, secret=hidden or (secret and bool(equals))))
        hidden = secret and not equals
    return out


def origins(words: Iterable[Word], variables: Iterable[EnvVar]) -> Mapping[str, Origin]:
    """By name: each variable, each flag (its values are of the same origin), and the words before the first flag."""
    out = {variable.name: variable.origin for variable in variables}
    flags = False
    for word in words:
        flags = flags or word.text.startswith("--")
        if word.text.startswith("-") and not _is_number(word.text):
            out[word.text.split("=", 1)[0]] = word.origin
        elif not flags and not word.secret:
            out[word.text] = word.origin
    return out


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdecimal()
