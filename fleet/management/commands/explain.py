"""`manage.py explain MODEL`: where each copy runs or, in a sentence that names machines, why it can't."""

import argparse
from collections import Counter
from typing import Any

from django.core.management.base import CommandError

from fleet.domain.placement import Placement
from fleet.domain.reasons import Refusal
from fleet.management.plain import PlainCommand
from fleet.services.errors import FleetError
from fleet.services.explanations import CopyExplanation, explain


class Command(PlainCommand):
    help = "Say where each copy of a model runs, or why it can't."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model", help="name or alias")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            found = explain(options["model"])
        except FleetError as error:
            raise CommandError(f"{error.detail}; {error.hint}" if error.hint else error.detail)
        states = Counter(copy.state.value for copy in found.copies)
        told = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in states.items()) or "none there"
        self.stdout.write(f"{found.name}: {found.wanted} wanted, {told}")
        if found.rollout:
            self.stdout.write(found.rollout)
        for copy in found.copies:
            self._copy(copy)
        if isinstance(found.another, Placement):
            self.stdout.write(f"one more copy would go to {', '.join(found.another.node_names)}")
        elif not any(copy.refusal for copy in found.copies):
            self.stdout.write("one more copy would not fit:")
            self._refusal(found.another)

    def _copy(self, copy: CopyExplanation) -> None:
        words = [copy.label, copy.state.value]
        if copy.where:
            words.append("on " + "; ".join(copy.where))
        self.stdout.write("  ".join(words) + (f": {copy.reason}" if copy.reason and not copy.refusal else ""))
        if copy.refusal:
            self._refusal(copy.refusal)

    def _refusal(self, refusal: Refusal) -> None:
        self.stdout.write(f"  {refusal.text}")
        if len(refusal.nodes) > 1:
            for node in refusal.nodes:
                self.stdout.write(f"    {node.text}")
        for proposal in refusal.proposals:
            self.stdout.write(f"  would help: {proposal.text}")
        if refusal.nodes and not refusal.proposals:
            self.stdout.write("  no small change would make it fit")
        if refusal.hint:
            self.stdout.write(f"  hint: {refusal.hint}")
