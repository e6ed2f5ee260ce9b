"""`manage.py catalog apply|validate|export|diff FILE`."""

import argparse
from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import BaseCommand, CommandError

from agent_client.profile import ProfileError, parse_catalog
from fleet.services import catalog
from fleet.services.errors import FleetError


class Command(BaseCommand):
    help = "Apply, validate, diff or export the catalog file."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        apply = verbs.add_parser("apply", help="make the catalog what the file says")
        apply.add_argument("file", type=Path)
        apply.add_argument("--dry-run", action="store_true", help="only say what would change")
        verbs.add_parser("validate", help="check the file").add_argument("file", type=Path)
        verbs.add_parser("diff", help="what apply would change").add_argument("file", type=Path)
        verbs.add_parser("export", help="print the catalog as a file")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["verb"] == "export":
            self.stdout.write(yaml.safe_dump(catalog.export_catalog(), sort_keys=False, allow_unicode=True))
            return
        path: Path = options["file"]
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
            parsed = parse_catalog(data)
            if options["verb"] == "validate":
                catalog.refuse_unrunnable(parsed.models)
                self.stdout.write(f"{path} is valid: {len(parsed.models)} models")
                return
            dry = options["verb"] == "diff" or options["dry_run"]
            changes = catalog.diff_catalog(data) if dry else catalog.apply_catalog(data, actor="catalog apply")
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}")
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise CommandError(f"cannot read {path} as YAML: {error}")
        except ProfileError as error:
            lines = [problem.sentence for problem in error.problems]
            raise CommandError(f"cannot use {path}:\n  " + "\n  ".join(lines))
        except FleetError as error:
            raise CommandError(f"{error.detail}; {error.hint}" if error.hint else error.detail)
        for change in changes:
            self.stdout.write(str(change))
        if not changes:
            self.stdout.write("no changes")
