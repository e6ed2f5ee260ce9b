"""What a row of the table is."""

import re
from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """Where trying again may help."""

    PROFILE = "profile"  # wrong on every node until someone changes the profile or the model
    NODE = "node"  # this node's fault: another may do
    CHANCE = "chance"  # may pass by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    code: str
    pattern: re.Pattern[str]
    says: str
    hint: str
    scope: Scope = Scope.PROFILE
    rank: int = 1
    near: str = ""  # text that must stand in one of the lines shortly before
    source: bool = False  # look in quoted source lines of a traceback, for errors without words


def row(
    code: str, pattern: str, says: str, hint: str, *, node: bool = False, chance: bool = False, **rest: object
) -> Cause:
    scope = Scope.NODE if node else Scope.CHANCE if chance else Scope.PROFILE
    return Cause(code=code, pattern=re.compile(pattern), says=says, hint=hint, scope=scope, **rest)  # type: ignore[arg-type]
