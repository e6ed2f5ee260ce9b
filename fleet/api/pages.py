"""Lists in pages, with bounds that every database takes."""

from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.pagination import LimitOffsetPagination
from rest_framework.request import Request

MOST_ROWS = 1_000
LAST_OFFSET = 1_000_000_000


class BoundedPages(LimitOffsetPagination):
    """`limit` and `offset` are whole numbers within bounds, or a problem."""

    max_limit = MOST_ROWS

    def get_limit(self, request: Request) -> int:
        return _whole(request, "limit", least=1, most=MOST_ROWS, default=self.default_limit)

    def get_offset(self, request: Request) -> int:
        return _whole(request, "offset", least=0, most=LAST_OFFSET, default=0)


def _whole(request: Request, name: str, *, least: int, most: int, default: Any) -> int:
    given = request.query_params.get(name)
    if given is None:
        return int(default)
    if not (given.isascii() and given.isdecimal() and len(given) < 20 and least <= int(given) <= most):
        raise ValidationError({name: f"a whole number from {least} to {most} is needed"})
    return int(given)
