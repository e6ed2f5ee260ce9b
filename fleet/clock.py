"""The database's clock: the one that all processes of the control plane share.

What one process stamps and another ages goes by it, as `Now()` inside a statement or as `now()` where a value is
needed: machines' own clocks differ, and are put back and forward. That this one may be put back too: domain/ages.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS
from django.db.models.functions import Now
from django.db.models.sql import Query

T = TypeVar("T")


def now() -> datetime:
    """Read in one statement that touches no table."""
    query = Query(None)
    query.add_annotation(Now(), "now")
    ((found,),) = query.get_compiler(DEFAULT_DB_ALIAS).results_iter()
    return found


def at_now(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a service that takes `now`."""
    return function(*args, now=now(), **kwargs)
