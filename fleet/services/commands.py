"""Orders to agents. A row first, in the transaction of the decision; delivery is the listener's and may be repeated."""

from django.db.models import F
from django.db.models.functions import Now

from agent_client.protocol.messages import Desired, DesiredShard, Drain, ShardSpec, Start, Stop
from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet import clock, doorbell
from fleet.domain.states import CommandKind, CommandState
from fleet.models import Command, GpuClaim, Node, Shard

DEFAULT_DRAIN_SECONDS = 600.0


def order(*, shard: Shard, kind: CommandKind, reason: str) -> Command:
    """Write an order within the caller's transaction; what it overtakes is dropped."""
    Node.objects.filter(pk=shard.node_id).update(desired_revision=F("desired_revision") + 1)
    revision = Node.objects.values_list("desired_revision", flat=True).get(pk=shard.node_id)
    Command.objects.filter(shard=shard, state=CommandState.OPEN).update(state=CommandState.DROPPED, answered_at=Now())
    shard.wanted = kind is not CommandKind.STOP
    shard.draining = kind is CommandKind.DRAIN
    shard.save(update_fields=["wanted", "draining"])
    command = Command.objects.create(node_id=shard.node_id, shard=shard, kind=kind, revision=revision, reason=reason)
    doorbell.ring_nodes([shard.node_id])
    return command


def wire_name(shard: Shard) -> str:
    """The shard's name on the stream; stable over attempts, which the epoch tells apart."""
    return f"{shard.replica.uid}/{shard.rank}"


def desired_for(node_id: int) -> Desired:
    """Everything that the node should run."""
    revision = Node.objects.values_list("desired_revision", flat=True).get(pk=node_id)
    shards = (
        Shard.objects.filter(node_id=node_id, wanted=True, epoch=F("replica__attempt"))
        .exclude(state__in=ENDED_SHARD_STATES)
        .select_related("replica__model", "replica__revision")
        .order_by("replica_id", "rank")
    )
    return Desired(revision=revision, shards=tuple(desired_shard(shard) for shard in shards))


def desired_shard(shard: Shard) -> DesiredShard:
    """One shard as the agent is told. `shard.replica.model` and `.revision` should be loaded."""
    replica = shard.replica
    # In the order in which they were claimed: ranks of a tensor-parallel group are neighbours in one NVLink domain,
    # and the cards of two domains may alternate on the bus.
    gpus = GpuClaim.objects.filter(shard=shard, released_at__isnull=True).order_by("pk")
    return DesiredShard(
        shard=wire_name(shard),
        epoch=shard.epoch,
        draining=shard.draining,
        drain_seconds=_drain_seconds(shard) if shard.draining else None,
        spec=ShardSpec(
            replica=replica.label,
            served_names=tuple(replica.revision.served_names) or (replica.model.name,),
            profile=replica.revision.profile,
            revision=replica.revision.number,
            rank=shard.rank,
            nodes=int(replica.revision.profile.get("nodes") or 1),
            gpus=tuple(gpus.values_list("gpu__uuid", flat=True)),
            engine_key=replica.engine_key or None,
            fabric_env=shard.fabric_env,
            rendezvous_address=shard.rendezvous_address or None,
            rendezvous_port=shard.rendezvous_port,
        ),
    )


def message_for(command: Command) -> Start | Stop | Drain:
    """The message that delivers an order."""
    shard = command.shard
    match CommandKind(command.kind):
        case CommandKind.START:
            return Start(command=command.pk, revision=command.revision, shard=desired_shard(shard))
        case CommandKind.STOP:
            return Stop(
                command=command.pk,
                revision=command.revision,
                shard=wire_name(shard),
                epoch=shard.epoch,
                reason=command.reason,
            )
        case CommandKind.DRAIN:
            return Drain(
                command=command.pk,
                revision=command.revision,
                shard=wire_name(shard),
                epoch=shard.epoch,
                deadline_seconds=_drain_seconds(shard),
                reason=command.reason,
            )


def answer(*, command_id: int, node_id: int, accepted: bool, detail: str) -> Command | None:
    """Close an order with the agent's answer; None when it was not open any more."""
    state = CommandState.DONE if accepted else CommandState.REFUSED
    rows = Command.objects.filter(pk=command_id, node_id=node_id, state=CommandState.OPEN)
    if rows.update(state=state, answer=detail[:500], answered_at=Now()) != 1:
        return None
    return Command.objects.select_related("shard").get(pk=command_id)


def _drain_seconds(shard: Shard) -> float:
    if shard.drain_deadline_at is None:
        return DEFAULT_DRAIN_SECONDS
    return max(0.0, (shard.drain_deadline_at - clock.now()).total_seconds())
