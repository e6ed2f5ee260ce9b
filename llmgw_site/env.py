"""Typed readers of environment variables. Each error names the variable, the bad value and a good one."""

import os

from django.core.exceptions import ImproperlyConfigured


def text(name: str, default: str = "") -> str:
    return os.environ.get(name, default)


def boolean(name: str, default: bool = False) -> bool:
    value = os.environ.get(name)
    if value is None or value == "":
        return default
    if value.lower() in ("1", "true", "yes", "on"):
        return True
    if value.lower() in ("0", "false", "no", "off"):
        return False
    raise ImproperlyConfigured(f"cannot read {name}={value!r}: give 1 or 0.")


def number(name: str, default: float, *, least: float = 0.0) -> float:
    value = os.environ.get(name)
    if value is None or value == "":
        return default
    try:
        result = float(value)
    except ValueError:
        raise ImproperlyConfigured(f"cannot read {name}={value!r}: give a number such as {default:g}.")
    if not result >= least:
        raise ImproperlyConfigured(f"cannot use {name}={value!r}: give at least {least:g}, such as {default:g}.")
    return result


def words(name: str, default: str = "") -> list[str]:
    """A comma-separated list."""
    return [word.strip() for word in os.environ.get(name, default).split(",") if word.strip()]


def ports(name: str, default: str) -> range:
    """A range such as 21000-21999, both ends included."""
    value = os.environ.get(name) or default
    first, _, last = value.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 65_536):
        raise ImproperlyConfigured(f"cannot read {name}={value!r}: give a range of ports such as {default}.")
    return range(int(first), int(last) + 1)


def secret(name: str) -> str:
    """A secret from NAME, or from the file that NAME_FILE names."""
    path = os.environ.get(f"{name}_FILE")
    if not path:
        return os.environ.get(name, "")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError as error:
        raise ImproperlyConfigured(f"cannot read {name}_FILE={path!r}: {error.strerror}.")
