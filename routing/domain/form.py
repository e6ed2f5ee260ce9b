"""Finds the model in a multipart form while it arrives (RFC 7578). Only what is not yet understood is kept."""

import re

from routing.domain.openai import Asked, BadRequest

#: A form has no more parts, and their heads are no longer: real ones have a dozen, of some hundred bytes. What says a
#: part's name is the shorter because a name is looked for in it from each `;` on.
MOST_PARTS = 256
PART_HEAD_BYTES = 8 * 1024
DISPOSITION_BYTES = 1024
VALUE_BYTES = 1024
_PARAMETER = re.compile(rb';[ \t]*([\w*-]+)[ \t]*=[ \t]*("(?:[^"\\]|\\.)*"|[^;\s]*)')
_BOUNDARY = re.compile(rb"""multipart/form-data[ \t]*;(?:.*;)?[ \t]*boundary=("?)([0-9A-Za-z'()+_,./:=? -]{1,70})\1""")
_LONG = "cannot read the request: the form's field model or stream is too long"
_LONG_HEAD = "cannot read the request: a form part's head is too long"
_WANTED = (b"model", b"stream")


class Form:
    """`feed` it the body; `model` is there as soon as its part has ended. Raises BadRequest."""

    def __init__(self, boundary: bytes) -> None:
        self.model: str | None = None
        self.span = (0, 0)  # where in the body the model's name stands
        self.streamed = False
        self._delimiter = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # so that the first delimiter is like the others
        self._offset = -2  # of the buffer's first byte in the body
        self._head: bytes | None = None  # the part's name, None while its head is awaited
        self._prologue = True
        self._parts = 0
        self._done = False

    def feed(self, data: bytes) -> None:
        if self._done:
            return
        self._buffer += data
        while self._step():
            pass

    def asked(self) -> Asked:
        if self.model is None:
            raise BadRequest("cannot read the request: the form has no field model")
        return Asked(model=self.model, stream=self.streamed, usage=True)

    def _step(self) -> bool:
        """Understand one more piece; False when more is needed first."""
        if self._prologue or self._head is not None:
            return self._content()
        end = self._buffer.find(b"\r\n\r\n")
        if self._buffer.startswith(b"--"):
            self._done = True
            self._buffer.clear()
            return False
        if end < 0:
            if len(self._buffer) > PART_HEAD_BYTES:
                raise BadRequest(_LONG_HEAD)
            return False
        self._parts += 1
        if end > PART_HEAD_BYTES:
            raise BadRequest(_LONG_HEAD)
        if self._parts > MOST_PARTS:
            raise BadRequest(f"cannot read the request: the form has more than {MOST_PARTS} parts")
        self._head = _name(bytes(self._buffer[:end]))
        self._drop(end + 2)  # the blank line's own line end may begin the delimiter after an empty value
        return True

    def _content(self) -> bool:
        end = self._buffer.find(self._delimiter)
        wanted = self._head in _WANTED
        if end < 0:
            if not wanted:
                self._drop(max(len(self._buffer) - len(self._delimiter) + 1, 0))
            elif len(self._buffer) > VALUE_BYTES:
                raise BadRequest(_LONG)
            return False
        if wanted and end > VALUE_BYTES:
            raise BadRequest(_LONG)
        if wanted:
            self._note(bytes(self._buffer[2:end]))
        self._drop(end + len(self._delimiter))
        self._head = None
        self._prologue = False
        return True

    def _note(self, value: bytes) -> None:
        if self._head == b"stream":
            self.streamed = value.strip().lower() in (b"true", b"1")
            return
        if self.model is not None:
            raise BadRequest("cannot read the request: the form has two fields model")
        try:
            self.model = value.decode()
        except UnicodeDecodeError:
            raise BadRequest("cannot read the request: the form's field model is no UTF-8") from None
        start = self._offset + 2
        self.span = (start, start + len(value))

    def _drop(self, count: int) -> None:
        del self._buffer[:count]
        self._offset += count


def form_of(content_type: bytes) -> Form | None:
    """A reader for a body of this type; None when it is no form. Raises BadRequest for one without a boundary."""
    if content_type[:19].lower() != b"multipart/form-data":
        return None
    found = _BOUNDARY.match(b"multipart/form-data" + content_type[19:])
    if found is None or found[2].endswith(b" "):
        raise BadRequest("cannot read the request: the form's Content-Type has no usable boundary")
    return Form(found[2])


def _name(head: bytes) -> bytes:
    for line in head.split(b"\r\n"):
        field, _, value = line.partition(b":")
        if field.strip().lower() == b"content-disposition":
            if len(value) > DISPOSITION_BYTES:
                raise BadRequest(_LONG_HEAD)
            for parameter, given in _PARAMETER.findall(value):  # a quoted value may hold what looks like another
                if parameter.lower() == b"name":
                    return bytes(given).strip(b'"')
    return b""
