"""Errors of services: `code` is stable and for programs, `detail` and `hint` are for people."""


class FleetError(Exception):
    """cannot do that."""

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint


class StaleTransition(FleetError):
    """cannot change the state: the row is no longer in one from which the target can be reached."""
