"""What must hold of a request before Django makes one of it: its query is text, and its body, if it is text, is UTF-8.

Django reads forms in whatever codec a Content-Type names, `bz2_codec` among them, and makes no request at all of a
header whose parameters it can't read: both would end as an error of ours.
"""

import codecs
from typing import Any

from django.http import HttpResponse
from django.utils.http import parse_header_parameters

from llmgw_site.failures import refusal

#: us-ascii is UTF-8, too.
READ = ("utf-8", "ascii")
MOST_TYPE = 1_000


class Readable:
    """An ASGI application that answers for the one behind it where a request can't be read."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer = _refused(scope)
        if answer is None:
            await self.application(scope, receive, send)
            return
        headers = [(name.encode(), value.encode()) for name, value in answer.items()]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": answer.content})


def _refused(scope: Any) -> HttpResponse | None:
    path = scope["path"]
    try:
        scope.get("query_string", b"").decode()
    except UnicodeDecodeError:
        hint = "write what is no ASCII as the percent-encoding of its UTF-8"
        return refusal(path, 400, "parse_error", "cannot read the address: its query is not UTF-8", hint)
    given = ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"content-type")
    hint = "send UTF-8, with a Content-Type such as application/json"
    try:
        if len(given) > MOST_TYPE:
            raise ValueError("it is too long")
        charset = parse_header_parameters(given)[1].get("charset")
        if charset is None or codecs.lookup(charset).name in READ:
            return None
    except (LookupError, ValueError):  # nothing that Python knows, or nothing that can be read
        pass
    return refusal(
        path, 415, "unsupported_media_type", f"cannot read the body: its Content-Type is {given[:100]}", hint
    )
