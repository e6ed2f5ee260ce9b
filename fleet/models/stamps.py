"""Times that the database stamps by itself, by its own clock: processes' clocks differ (see fleet.clock)."""

from typing import Any

from django.db import models
from django.db.models.functions import Now


def stamped(**more: Any) -> "models.DateTimeField[Any, Any]":
    """When the row was made, as a column."""
    return models.DateTimeField(db_default=Now(), editable=False, **more)
