"""`manage.py router_key NAME`: make a client's key. Its text is shown once."""

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from fleet.endpoints import ring_routes
from routing.keys import new_key
from routing.models import ApiKey


class Command(BaseCommand):
    help = "Make an API key and print it once; --catalog-entry stores nothing and prints the entry for a file."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--models", default="", help="comma-separated names that the key may use; default: all")
        parser.add_argument("--manage", action="store_true", help="the key may also use the REST API")
        parser.add_argument("--catalog-entry", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        text, prefix, sha256 = new_key()
        models = [name for name in options["models"].split(",") if name] or None
        if options["catalog_entry"]:
            listed = f", models: [{', '.join(models)}]" if models else ""
            self.stdout.write(f"key (shown once): {text}")
            self.stdout.write(f"  - {{name: {options['name']}, prefix: {prefix}, sha256: {sha256}{listed}}}")
            return
        if ApiKey.objects.filter(name=options["name"]).exists():
            raise CommandError(f"cannot make the key {options['name']}: there is one of that name; choose another")
        ApiKey.objects.create(
            name=options["name"],
            prefix=prefix,
            sha256=sha256,
            allowed_models=models,
            may_manage=options["manage"],
        )
        ring_routes()
        self.stdout.write(text)
