"""How many examples a property is tried with."""

import os


def examples(number: int) -> int:
    """So many in CI; a fifth of them where somebody waits for the tests."""
    return number if os.environ.get("CI") else max(number // 5, 5)
