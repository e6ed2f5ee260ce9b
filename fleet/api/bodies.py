"""What comes in the body of a request: one JSON object of bounded depth, whose values can be stored, or nothing."""

from typing import Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from agent_client.profile import UnreadableJson, read_json_object


class JsonObjectParser(JSONParser):
    """Of JSONParser it is the media type, and that the body is read within DATA_UPLOAD_MAX_MEMORY_SIZE.

    JSON is UTF-8 (RFC 8259): a `charset` changes nothing.
    """

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> dict[str, Any]:
        try:
            return read_json_object(stream.read())
        except UnreadableJson as error:
            raise ParseError(f"cannot read the body: {error}") from None


class ReadableBody(BasePermission):
    """A permission of every view: once it is known who asks, what comes with a change must be readable.

    So a verb that takes no body refuses a broken one, too, and each view finds keys and values in `request.data`.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        return request.method in SAFE_METHODS or isinstance(request.data, dict)
