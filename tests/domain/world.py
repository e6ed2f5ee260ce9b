"""A fleet in memory: rows, and agents that do what they are told. Each action is carried out as services do it.

It refuses what the database would refuse: a second live claim on a card, a second live shard of a rank.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from agent_client.profile import EngineKind, Profile
from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet.domain.actions import (
    Action,
    AskNode,
    CreateReplica,
    DeleteReplica,
    DrainShard,
    EndRollout,
    Explain,
    GiveUpShard,
    NodeDrained,
    RemoveReplica,
    SetGoal,
    StartReplica,
    StopShard,
)
from fleet.domain.reconcile import reconcile
from fleet.domain.replica_state import ReplicaFacts, ShardFact, compute
from fleet.domain.room import SnapshotRoom
from fleet.domain.states import CheckState, NodeStatus, ReplicaState, ReplicaWish, RolloutState
from fleet.domain.types import (
    CheckView,
    FleetSnapshot,
    GpuView,
    ModelView,
    NodeView,
    PortView,
    ReplicaView,
    RolloutView,
    ShardView,
)

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
GONE = (*ENDED_SHARD_STATES, ShardState.LOST)


def profile(*, cards: int = 1, nodes: int = 1, **fields: Any) -> Profile:
    """A vLLM profile of `cards` per node."""
    return Profile(
        engine=EngineKind.VLLM, model="org/m", tensor_parallel=cards, pipeline_parallel=nodes, nodes=nodes, **fields
    )


@dataclass(slots=True)
class World:
    now: datetime = BEGAN
    nodes: dict[int, NodeView] = field(default_factory=dict)
    models: dict[int, ModelView] = field(default_factory=dict)
    replicas: dict[int, ReplicaView] = field(default_factory=dict)
    shards: dict[int, ShardView] = field(default_factory=dict)
    owner: dict[int, int] = field(default_factory=dict)  # shard → replica
    claims: dict[int, int] = field(default_factory=dict)  # card → shard
    leaving: dict[int, datetime] = field(default_factory=dict)  # node → deadline of its drain
    bad: set[int] = field(default_factory=set)  # revisions that fail in loading
    unfit: set[int] = field(default_factory=set)  # revisions that nodes refuse when asked
    done: list[Action] = field(default_factory=list)
    _next: int = 0

    # -- what there is -------------------------------------------------------------------------------------------------

    def add_node(self, cards: int, *, fabric: str = "ib") -> int:
        pk = len(self.nodes) + 1
        gpus = tuple(
            GpuView(pk=pk * 100 + i, uuid=f"G{pk}-{i}", index=i, gpu_class="h100", domain="d") for i in range(cards)
        )
        port = PortView(hca="mlx5_0", port=1, fabric=fabric, active=True, netdev="ib0", address=f"10.0.0.{pk}")
        self.nodes[pk] = NodeView(
            pk=pk,
            name=f"n{pk}",
            status=NodeStatus.READY,
            engines=("vllm",),
            gpus=gpus,
            ports=(port,),
            mgmt_addr=f"10.1.0.{pk}",
        )
        return pk

    def add_model(self, copies: int, wanted: Profile) -> int:
        pk = len(self.models) + 1
        self.models[pk] = ModelView(
            pk=pk, name=f"m{pk}", replicas=copies, revision=1, profile=wanted, older={1: wanted}
        )
        return pk

    def change(self, model: int, **fields: Any) -> None:
        self.models[model] = replace(self.models[model], **fields)

    def roll_out(self, model: int, wanted: Profile) -> int:
        """A new revision while replicas serve; its number."""
        old = self.models[model]
        target = old.revision + 1
        rollout = RolloutView(pk=model, target=target, state=RolloutState.ROLLING)
        self.change(model, revision=target, profile=wanted, older={**old.older, target: wanted}, rollout=rollout)
        return target

    def snapshot(self) -> FleetSnapshot:
        holders = {gpu: self.replicas[self.owner[shard]].label for gpu, shard in self.claims.items()}
        nodes = tuple(
            replace(
                node,
                schedulable=node.schedulable and node.pk not in self.leaving,
                draining=node.pk in self.leaving,
                gpus=tuple(replace(gpu, holder=holders.get(gpu.pk, "")) for gpu in node.gpus),
            )
            for node in self.nodes.values()
        )
        return FleetSnapshot(
            nodes=nodes,
            models=tuple(self.models.values()),
            replicas=tuple(self._seen(each) for each in self.replicas.values()),
            draining=tuple(self.leaving),
        )

    def _seen(self, replica: ReplicaView) -> ReplicaView:
        own = [shard for pk, shard in self.shards.items() if self.owner[pk] == replica.pk]
        kept = [s for s in own if s.state not in ENDED_SHARD_STATES or s.epoch == replica.attempt]
        shards = tuple(replace(s, evacuate_at=self.leaving.get(s.node)) for s in kept)
        return replace(replica, state=self.state(replica.pk), shards=shards)

    def state(self, replica: int) -> ReplicaState:
        row = self.replicas[replica]
        facts = tuple(
            ShardFact(rank=s.rank, state=s.state, wanted=s.wanted, draining=s.draining, endpoint="http://x")
            for pk, s in sorted(self.shards.items())
            if self.owner[pk] == replica and s.epoch == row.attempt
        )
        waiting = row.next_try_at is not None and row.next_try_at > self.now
        return compute(ReplicaFacts(wish=row.wish, waiting=waiting, shards=facts, explained=row.explanation_text)).state

    def ready(self, model: int) -> int:
        return sum(self.state(r.pk) is ReplicaState.READY for r in self.replicas.values() if r.model == model)

    def held_by(self, shard: int) -> tuple[int, ...]:
        return tuple(gpu for gpu, holder in sorted(self.claims.items()) if holder == shard)

    # -- what happens --------------------------------------------------------------------------------------------------

    def decide(self, snapshot: FleetSnapshot | None = None) -> tuple[Action, ...]:
        seen = snapshot or self.snapshot()
        cards = {pk: self.held_by(pk) for pk in self.shards}
        return reconcile(seen, self.now, room=SnapshotRoom(seen, cards))

    def tick(self) -> tuple[Action, ...]:
        actions = self.decide()
        for action in actions:
            self.carry_out(action)
        self.done += actions
        return actions

    def settle(self, *, seconds: float = 1.0, rounds: int = 60) -> None:
        """Ticks and obedient agents until nothing happens any more."""
        for _ in range(rounds):
            actions = self.tick()
            moved = self.obey()
            if not actions and not moved:
                return
            self.now += timedelta(seconds=seconds)
        raise AssertionError(f"it does not settle: {self.decide()}")

    def obey(self, only: set[int] | None = None) -> bool:
        """Each agent takes its shards one step towards what is wished of them."""
        moved = False
        for pk, shard in list(self.shards.items()):
            if shard.state in GONE or (only is not None and pk not in only):
                continue
            target = self._step(pk, shard)
            if target is not shard.state:
                self.move(pk, target)
                moved = True
        return moved

    def _step(self, pk: int, shard: ShardView) -> ShardState:
        if self.nodes[shard.node].status is not NodeStatus.READY:
            return shard.state
        if not shard.wanted or shard.draining:
            return ShardState.STOPPED
        if shard.state is ShardState.ASSIGNED:
            return ShardState.LOADING
        if shard.state is ShardState.LOADING:
            bad = self.replicas[self.owner[pk]].revision in self.bad
            return ShardState.FAILED if bad else ShardState.READY
        return shard.state

    def move(self, pk: int, state: ShardState) -> None:
        self.shards[pk] = shard = replace(self.shards[pk], state=state, moved_at=self.now)
        if state in GONE:
            self.claims = {gpu: holder for gpu, holder in self.claims.items() if holder != pk}
        if state is ShardState.FAILED:
            self._failed(self.replicas[self.owner[pk]], shard)

    def _failed(self, row: ReplicaView, shard: ShardView) -> None:
        if shard.epoch == row.attempt:
            later = self.now + timedelta(seconds=10)
            self.replicas[row.pk] = replace(row, failure="it failed", next_try_at=later)

    def lose(self, node: int) -> None:
        self.nodes[node] = replace(self.nodes[node], status=NodeStatus.LOST)
        for pk, shard in list(self.shards.items()):
            if shard.node == node and shard.state not in GONE:
                self.move(pk, ShardState.LOST)

    def find_back(self, node: int) -> None:
        """Its engines were never gone: what is wanted and not replaced is taken back, the others have been stopped."""
        self.nodes[node] = replace(self.nodes[node], status=NodeStatus.READY)
        for pk, shard in list(self.shards.items()):
            if shard.node == node and shard.state is ShardState.LOST:
                row = self.replicas[self.owner[pk]]
                same = shard.wanted and shard.epoch == row.attempt
                self.shards[pk] = replace(shard, state=ShardState.STOPPED)
                if same:
                    self._hold(pk, self.taken_by[pk])
                    self.shards[pk] = replace(shard, state=ShardState.READY)

    taken_by: dict[int, tuple[int, ...]] = field(default_factory=dict)  # shard → the cards that it was given

    def _hold(self, shard: int, gpus: tuple[int, ...]) -> None:
        for gpu in gpus:
            assert gpu not in self.claims, f"a second live claim on {gpu}"
            self.claims[gpu] = shard

    def _key(self) -> int:
        self._next += 1
        return self._next

    def carry_out(self, action: Action) -> None:
        match action:
            case CreateReplica():
                pk = self._key()
                self.replicas[pk] = ReplicaView(
                    pk=pk,
                    label=f"m{action.model}/{action.number}",
                    model=action.model,
                    number=action.number,
                    wish=ReplicaWish.RUN,
                    state=ReplicaState.PENDING,
                    attempt=0,
                    revision=action.revision,
                    created_at=self.now,
                    replaces=action.replaces,
                )
            case RemoveReplica(replica=pk):
                self.replicas[pk] = replace(self.replicas[pk], wish=ReplicaWish.REMOVE)
            case DeleteReplica(replica=pk):
                del self.replicas[pk]
                for shard in [s for s, owner in self.owner.items() if owner == pk]:
                    assert self.shards.pop(shard).state in ENDED_SHARD_STATES
                    del self.owner[shard]
                for other in list(self.replicas.values()):
                    if other.replaces == pk:
                        self.replicas[other.pk] = replace(other, replaces=None)
            case SetGoal(replica=pk, revision=revision):
                row = self.replicas[pk]
                self.replicas[pk] = replace(row, goal=None if row.revision == revision else revision)
            case StopShard(shard=pk) | GiveUpShard(shard=pk):
                assert self.shards[pk].wanted
                self.shards[pk] = replace(self.shards[pk], wanted=False)
                if isinstance(action, GiveUpShard):
                    self._failed(self.replicas[self.owner[pk]], self.shards[pk])
            case DrainShard(shard=pk, deadline_at=until):
                assert not self.shards[pk].draining
                self.shards[pk] = replace(self.shards[pk], draining=True, drain_deadline_at=until)
            case StartReplica():
                self._start(action)
            case Explain(replica=pk, refusal=refusal):
                self.replicas[pk] = replace(self.replicas[pk], explanation_text=refusal.text, restart_requested=False)
            case AskNode(model=model, revision=revision, part=part):
                rollout = self.models[model].rollout
                assert rollout is not None
                refused = revision in self.unfit
                check = CheckView(state=CheckState.REFUSED if refused else CheckState.PASSED, text="unknown flag")
                self.change(model, rollout=replace(rollout, checks={**rollout.checks, part.node: check}))
            case EndRollout(rollout=model, state=state):
                stable = self.models[model].revision if state is RolloutState.DONE else self.models[model].stable
                self.change(model, rollout=None, stable=stable)
            case NodeDrained(node=node):
                del self.leaving[node]
                self.nodes[node] = replace(self.nodes[node], schedulable=False)

    def _start(self, action: StartReplica) -> None:
        row = self.replicas[action.replica]
        assert row.attempt == action.attempt
        alive = [s for pk, s in self.shards.items() if self.owner[pk] == row.pk and s.state not in GONE]
        assert not alive, "a second live attempt"
        self.replicas[row.pk] = replace(
            row,
            attempt=row.attempt + 1,
            revision=action.revision,
            goal=None,
            explanation_text="",
            restart_requested=False,
            drain_deadline_at=None,
            next_try_at=None,
            failure="",
        )
        for part in action.placement.shards:
            pk = self._key()
            self.shards[pk] = ShardView(
                pk=pk,
                rank=part.rank,
                epoch=row.attempt + 1,
                node=part.node,
                state=ShardState.ASSIGNED,
                wanted=True,
                moved_at=self.now,
                rendezvous_port=action.rendezvous_port,
            )
            self.owner[pk] = row.pk
            self.taken_by[pk] = part.gpus
            self._hold(pk, part.gpus)
