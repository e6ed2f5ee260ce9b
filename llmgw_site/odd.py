"""Values that no row can have, in the addresses and actions of pages: what was asked is wrong, and llmgw is not.

Django looks for a row numbered NUL or 10^20 as it is told, and falls over it where the value meets a column.
"""

import logging
from collections.abc import Callable

from django.core.exceptions import BadRequest
from django.db import DataError
from django.http import HttpRequest, HttpResponse

from llmgw_site.failures import bad_request

logger = logging.getLogger(__name__)
SAID = ("expected a number but got", "is out of range", "must be in 1..")
TEXT = "a value in it is none that is looked for there"


class OddValues:
    """Middleware, the innermost: only what a view raises comes here."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if any("\0" in text for name, texts in request.GET.lists() for text in (name, *texts)):
            return bad_request(request, BadRequest("the address holds NUL"))
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not (isinstance(exception, OverflowError | DataError) or _is_of_a_value(exception)):
            return None
        logger.warning("request.odd method=%s path=%r", request.method, request.path[:200], exc_info=exception)
        return bad_request(request, BadRequest(TEXT))


def _is_of_a_value(exception: Exception) -> bool:
    """As integer columns and dates say it of what they are compared with."""
    return isinstance(exception, ValueError | TypeError) and any(text in str(exception) for text in SAID)
