"""The rest of a body that is still on its way: passed on to the engine as it comes, and kept nowhere."""

from routing.dataplane.messages import Request
from routing.dataplane.upstream import Upstream


class Upload:
    def __init__(self, upstream: Upstream, request: Request) -> None:
        self._upstream = upstream
        self._request = request
        self._chunked = b"content-length" not in request.head.fields
        upstream.sending = True

    def more(self) -> None:
        """Send what has come."""
        request = self._request
        data, request.body = request.body, b""
        if data:
            self._upstream.write(b"%x\r\n" % len(data) + data + b"\r\n" if self._chunked else data)
        if request.complete and self._upstream.sending:
            self._upstream.sending = False
            self._upstream.write(b"0\r\n\r\n" if self._chunked else b"")
