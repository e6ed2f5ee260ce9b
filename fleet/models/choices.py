"""Derives Django choices and CHECK constraints from the plain enums of the domain, so that neither can drift."""

from enum import StrEnum

from django.db import models


def choices(kind: type[StrEnum]) -> list[tuple[str, str]]:
    return [(member.value, member.value.replace("_", " ")) for member in kind]


def known(field: str, kind: type[StrEnum], *, name: str) -> models.CheckConstraint:
    """The column holds a known word; the database refuses any other."""
    return models.CheckConstraint(
        condition=models.Q(**{f"{field}__in": [member.value for member in kind]}),
        name=name,
        violation_error_message=f"cannot save: {field} must be one of {', '.join(kind)}.",
    )
