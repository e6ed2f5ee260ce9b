"""`manage.py router-key NAME`: make a client's key. Its text is shown once."""

import argparse
from datetime import UTC, datetime
from functools import partial
from typing import Any

import yaml
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from agent_client.profile import KEY_LIMITS
from routing.keys import new_key
from routing.services import BadKeyName, KeyNameTaken, checked_name, create_key, not_in_catalog

LIMITS = {
    "requests_per_minute": "requests in any minute",
    "tokens_per_minute": "tokens in any minute",
    "concurrency": "requests at once",
    "tokens_per_month": "tokens in a month of the calendar (UTC)",
}


class Command(BaseCommand):
    help = (
        "Make an API key and print it once. With --catalog-entry, and where there is no database, nothing is stored: "
        "the line for a catalog file is printed, too."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--models", default="", help="comma-separated names that the key may use; default: all")
        parser.add_argument("--expires", type=_moment, metavar="DATE", help="its end, such as 2027-01-01 (UTC)")
        parser.add_argument("--manage", action="store_true", help="the key may also use the REST API")
        parser.add_argument("--catalog-entry", action="store_true")
        for name, text in LIMITS.items():
            limit = partial(_limit, most=KEY_LIMITS[name])
            parser.add_argument(f"--{name.replace('_', '-')}", type=limit, metavar="N", help=text)

    def handle(self, *args: Any, **options: Any) -> None:
        models = [name.strip() for name in options["models"].split(",") if name.strip()] or None
        expires = options["expires"]
        limits = {name: options[name] for name in LIMITS if options[name] is not None}
        try:
            options["name"] = checked_name(options["name"])
        except BadKeyName as error:
            raise CommandError(str(error))
        if options["catalog_entry"]:
            if options["manage"]:
                raise CommandError(
                    f"cannot make the key {options['name']}: a catalog file's keys know no REST API; leave out --manage"
                )
            return self._entry(options["name"], models, expires, limits)
        try:
            _, text = create_key(
                name=options["name"],
                allowed_models=models,
                may_manage=options["manage"],
                expires_at=expires,
                **limits,
            )
        except KeyNameTaken as error:
            raise CommandError(str(error))
        except DatabaseError:
            if options["manage"]:
                raise CommandError(
                    f"cannot make the key {options['name']}: the database has no tables or does not answer, and only "
                    "it keeps keys for the REST API; run manage.py migrate"
                )
            self.stderr.write("no database is set up: the key is stored nowhere; put its line into a catalog file")
            return self._entry(options["name"], models, expires, limits)
        self.stdout.write(text)
        if warning := not_in_catalog(models):
            self.stderr.write(warning)

    def _entry(self, name: str, models: list[str] | None, expires: datetime | None, limits: dict[str, int]) -> None:
        text, prefix, sha256 = new_key()
        entry: dict[str, Any] = {"name": name, "prefix": prefix, "sha256": sha256}
        if models:
            entry["models"] = models
        if expires:
            entry["expires"] = expires.isoformat()
        line = yaml.safe_dump(entry | limits, default_flow_style=True, sort_keys=False, width=10_000).strip()
        self.stdout.write(f"key (shown once): {text}")
        self.stdout.write(f"  - {line}")


def _limit(text: str, *, most: int) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from 1 to {most}")
    return int(text)


def _moment(text: str) -> datetime:
    """A date means its beginning; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no date such as 2027-01-01")
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment <= datetime.now(UTC):
        raise argparse.ArgumentTypeError(f"{text!r} is over")
    return moment
