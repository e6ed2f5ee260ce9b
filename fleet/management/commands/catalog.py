"""`manage.py catalog apply|validate|export|diff FILE`."""

import argparse
from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import CommandError

from agent_client.profile import ProfileError, UnreadableYaml, parse_catalog, read_yaml_file
from fleet.management.plain import PlainCommand
from fleet.services import catalog
from fleet.services.errors import FleetError


class Command(PlainCommand):
    help = "Apply, validate, diff or export the catalog file."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        apply = verbs.add_parser("apply", help="make the catalog what the file says")
        apply.add_argument("file", type=Path)
        apply.add_argument("--dry-run", action="store_true", help="only say what would change")
        apply.add_argument("--prune", action="store_true", help="also remove the models that the file does not name")
        verbs.add_parser("validate", help="check the file").add_argument("file", type=Path)
        verbs.add_parser("diff", help="what apply would change").add_argument("file", type=Path)
        verbs.add_parser("export", help="print the catalog as a file")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["verb"] == "export":
            self.stdout.write(yaml.safe_dump(catalog.export_catalog(), sort_keys=False, allow_unicode=True))
            return
        path: Path = options["file"]
        try:
            data = read_yaml_file(path)
            parsed = parse_catalog(data)
            if options["verb"] == "validate":
                catalog.refuse_unrunnable(parsed.models)
                self.stdout.write(f"{path} is valid: {len(parsed.models)} models")
                return
            changes = self._changes(data, options)
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}")
        except UnreadableYaml as error:
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

    def _changes(self, data: Any, options: dict[str, Any]) -> tuple[catalog.Change, ...]:
        if options["verb"] == "apply" and not options["dry_run"]:
            return catalog.apply_catalog(data, actor="catalog apply", prune=options["prune"])
        changes = catalog.diff_catalog(data)
        if not options.get("prune") and any(change.verb == "remove" for change in changes):
            self.stderr.write("what is marked `-` is removed with `catalog apply --prune` only")
        return changes
