"""What the log says beyond what each line says itself. Imported by the settings: no Django here."""

import logging


class ErrorNumbers(logging.Filter):
    """Puts the number that a client was told of an error into the line that Django logs of it."""

    def filter(self, record: logging.LogRecord) -> bool:
        number = getattr(getattr(record, "request", None), "error_number", "")
        if number:
            record.msg, record.args = f"{record.getMessage()} error={number}", ()
        return True
