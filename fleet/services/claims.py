"""Who holds which card. The database refuses a second live claim; here the refusal gets its sentence."""

import contextlib
from collections.abc import Iterable

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from fleet.models import Gpu, GpuClaim, Shard
from fleet.services.errors import FleetError


def claim(shard: Shard, gpu_ids: Iterable[int]) -> None:
    """Claim cards for a shard, all or none."""
    ids = list(gpu_ids)
    try:
        with transaction.atomic():
            GpuClaim.objects.bulk_create(GpuClaim(gpu_id=gpu_id, shard=shard) for gpu_id in ids)
    except IntegrityError:
        raise FleetError("gpu_taken", f"cannot claim GPUs for shard {shard}: another shard holds one of them") from None


def release(shard_id: int) -> int:
    """Let go of a shard's cards; how many they were."""
    return GpuClaim.objects.filter(shard_id=shard_id, released_at__isnull=True).update(released_at=Now())


def hold_back(shard: Shard) -> None:
    """Of the cards that a replaced shard may still use, claim those that nobody holds, so that nothing is put there."""
    ids = set(GpuClaim.objects.filter(shard=shard).values_list("gpu_id", flat=True))
    held = set(GpuClaim.objects.filter(gpu__in=ids, released_at__isnull=True).values_list("gpu_id", flat=True))
    for gpu_id in ids - held:
        with contextlib.suppress(FleetError):
            claim(shard, [gpu_id])


def reclaim(shard: Shard) -> bool:
    """Take back the cards that a returning shard held; False when another holds one by now."""
    held = set(GpuClaim.objects.filter(shard=shard, released_at__isnull=True).values_list("gpu_id", flat=True))
    # In their old order, which is the order of the engine's ranks.
    own = dict.fromkeys(GpuClaim.objects.filter(shard=shard).order_by("pk").values_list("gpu_id", flat=True))
    wanted = [gpu for gpu in own if gpu not in held]
    if Gpu.objects.filter(pk__in=wanted, claims__released_at__isnull=True, claims__isnull=False).exists():
        return False
    try:
        claim(shard, wanted)
    except FleetError:
        return False
    return True
