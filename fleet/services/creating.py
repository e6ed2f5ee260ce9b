"""New replicas, many at once. Within the caller's transaction."""

import secrets
from collections.abc import Sequence
from datetime import datetime

from fleet.domain.actions import CreateReplica
from fleet.models import ProfileRevision, Replica
from fleet.services.events import record_all, written


def create_all(actions: Sequence[CreateReplica], now: datetime) -> int:
    """How many were created; one whose model or revision is gone is left out."""
    models = {action.model for action in actions}
    rows = ProfileRevision.objects.filter(model__in=models).select_related("model").defer("profile")
    revisions = {(row.model_id, row.number): row for row in rows}
    made = [
        Replica(
            model=revision.model,
            number=action.number,
            revision=revision,
            replaces_id=action.replaces,
            engine_key=secrets.token_urlsafe(24),
            created_at=now,
        )
        for action in actions
        if (revision := revisions.get((action.model, action.revision))) is not None
    ]
    Replica.objects.bulk_create(made)
    record_all(
        written("replica_created", f"{each.label} created" + " to take over" * (each.replaces_id is not None), each.pk)
        for each in made
    )
    return len(made)
