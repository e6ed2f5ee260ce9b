"""What the log says beyond what each line says itself. Imported by the settings: no Django here."""

import logging

#: Of a line about what somebody sent.
MOST_TOLD = 300


class ErrorNumbers(logging.Filter):
    """Puts the number that a client was told of an error into the line that Django logs of it."""

    def filter(self, record: logging.LogRecord) -> bool:
        number = getattr(getattr(record, "request", None), "error_number", "")
        if number:
            record.msg, record.args = f"{record.getMessage()} error={number}", ()
        return True


class Refused(logging.Filter):
    """What Django calls suspicious (another host's name, a body that is too large, a field that is none) is answered
    with 400: a line that says so, as a warning. A traceback for each would let anybody fill the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("django.security"):
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.exc_info = record.exc_text = None
            record.msg, record.args = record.getMessage()[:MOST_TOLD], ()
        return True
