"""Wires the agent: hardware, supervisor and link. Heartbeats never wait for anything else."""

import asyncio
import contextlib
import logging
import platform
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_client import __version__, preflight, probes, weights
from agent_client.config import AgentConfig
from agent_client.engines import Probed, Readiness
from agent_client.hardware import Discovery, DiscoveryOptions, Watch
from agent_client.hardware.leftovers import oom_killed, still_held
from agent_client.hardware.program import run_quietly
from agent_client.identity import (
    INSTANCE_ID,
    Identity,
    boot_id,
    hold_identity,
    load_identity,
    machine_id,
    save_identity,
)
from agent_client.installed import Installed
from agent_client.launching import base_environment, read_secrets
from agent_client.ledger import Ledger
from agent_client.link import Link
from agent_client.profile import Problem, Profile, ProfileError, Refusal, parse_profile
from agent_client.profile.hidden import secrets_of
from agent_client.protocol.messages import (
    PROTOCOL_VERSION,
    Ack,
    Check,
    Checked,
    Desired,
    Drain,
    Goodbye,
    Heartbeat,
    LogChunk,
    Message,
    Refresh,
    Register,
    Registered,
    Report,
    ShardReport,
    ShardSpec,
    ShardStatus,
    Start,
    Stop,
    Sync,
    Tail,
    ToldProblem,
)
from agent_client.protocol.states import FailureCode
from agent_client.supervisor import Figures, NodeTools, OrderRefused, Supervisor
from agent_client.supervisor.cgroup import here as own_cgroups
from agent_client.supervisor.evidence import problems_told, redacted

log = logging.getLogger(__name__)

REPORT_STEP_SECONDS = 5.0
LOAD_SECONDS = 60.0
#: What must be seen twice of a card, or counted by the hour, is so over this time, however often it is looked at.
STEADY_SECONDS = 30.0


class Agent:
    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._boot_id = boot_id()
        self._held: socket.socket | None = None  # of the identity
        self._sent_fingerprint = ""
        self._revision = -1
        self._applied = 0
        self._heartbeat_seconds = 10.0
        self._report_seconds = 180.0
        self._applying = asyncio.Lock()
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._look = asyncio.Event()
        self._registered_anew = asyncio.Event()
        self._ledger = Ledger(config.state_dir / "ledger.json")
        self._installed = Installed(run=run_quietly, folder=config.state_dir)
        self._supervisor = Supervisor(
            config=config,
            ledger=self._ledger,
            boot_id=self._boot_id,
            tools=NodeTools(
                preflight=self._preflight,
                foresee=self._foresee,
                command=lambda profile: preflight.command_for(config, profile.engine) or (),
                free_ports=preflight.Ports(config.policy.ports, config.mgmt_addr, owner=str(config.state_dir)).take,
                probe=_probe,
                load=_load,
                fetch=self._fetch,
                holders=self._holders,
                surroundings=self._surroundings,
                oom_killed=oom_killed,
                cgroups=own_cgroups,
                sick_card=self._sick_card,
            ),
            on_report=self._shard_changed,
        )
        ours = self._supervisor
        options = DiscoveryOptions(
            **config.of_hardware(),
            owned_pids=ours.owned_pids,
            owned_gpus=ours.owned_gpus,
            steady_seconds=STEADY_SECONDS,
            also_warned=lambda: preflight.engine_warnings(config),
        )
        self._watch = Watch(Discovery(options), pause_seconds=config.discovery_seconds)
        self._link = Link(
            server=config.server,
            join_secret=config.join_secret,
            node_id=config.node_id,
            register=self._registration,
            on_registered=self._registered,
            on_message=self._take,
        )

    async def run(self, *, stop_engines: bool) -> None:
        """Until SIGTERM or SIGINT."""
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        if (identity := load_identity(self._config.state_dir)) is not None:
            self._hold(identity)
        await self._supervisor.adopt()
        seen = await asyncio.to_thread(self._watch.look)
        for text in seen.lasting_warnings:
            log.warning("agent.engine_unrunnable node=%s reason=%s", self._config.node_id, text)
        preflight.ask_engines(self._config, self._installed)
        work = (self._link.run(), self._beat(), self._watch.run(self._look.set), self._report_often())
        tasks = [asyncio.create_task(item) for item in work]
        waiter = asyncio.create_task(ended.wait())
        done, _ = await asyncio.wait({waiter, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        await self._link.close(Goodbye(reason="the agent was asked to stop", engines_stay=not stop_engines))
        await self._supervisor.close(stop_engines=stop_engines)
        left = (waiter, *tasks, *self._answering.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for task in done:
            task.result()  # a part of the agent that ends by itself is a mistake, and must not look like a stop

    def _hold(self, identity: Identity) -> None:
        if self._held is not None:
            self._held.close()
        self._held = hold_identity(identity)

    # -- what is said -------------------------------------------------------------------------------------------------

    async def _registration(self) -> Register:
        config = self._config
        identity = load_identity(config.state_dir)
        inventory = self._watch.inventory
        self._sent_fingerprint = self._watch.fingerprint
        self._revision = -1
        return Register(
            protocol=PROTOCOL_VERSION,
            agent_version=__version__,
            node_id=config.node_id,
            machine_id=machine_id(),
            boot_id=self._boot_id,
            instance_id=INSTANCE_ID,
            hostname=socket.gethostname(),
            mgmt_addr=config.mgmt_addr,
            node_uid=identity.node_uid if identity else None,
            credential=identity.credential if identity else None,
            inventory=inventory.to_json() if inventory else {},
            inventory_fingerprint=self._sent_fingerprint,
            fabrics=tuple(label.name for label in config.fabrics),
            labels=config.labels,
            engines=await asyncio.to_thread(preflight.available_engines, config),
            shards=self._supervisor.reports(),
            state_lost=self._supervisor.state_lost,
            platform=platform.platform(),
        )

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):  # a new registration may have brought a shorter interval
                await asyncio.wait_for(self._registered_anew.wait(), self._heartbeat_seconds)
            self._registered_anew.clear()
            stale = self._watch.stale_seconds
            self._link.send(Heartbeat(desired_revision=self._applied, inventory_stale_seconds=stale))

    async def _report_often(self) -> None:
        loop = asyncio.get_running_loop()
        reported = loop.time()
        while True:
            # In steps: a new registration may have brought a shorter interval.
            left = reported + self._report_seconds - loop.time()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), min(max(left, 0.01), REPORT_STEP_SECONDS))
            if self._look.is_set() or loop.time() >= reported + self._report_seconds:
                self._look.clear()
                reported = loop.time()
                await self._report(force=False)

    async def _report(self, *, force: bool) -> None:
        inventory, print_ = self._watch.inventory, self._watch.fingerprint
        changed = force or print_ != self._sent_fingerprint
        sent = self._link.send(
            Report(
                shards=self._supervisor.reports(),
                inventory=inventory.to_json() if inventory and changed else None,
                inventory_fingerprint=print_,
                engines=await asyncio.to_thread(preflight.available_engines, self._config),
            )
        )
        if sent and changed:
            self._sent_fingerprint = print_

    def _shard_changed(self, report: ShardReport) -> None:
        self._link.send(ShardStatus(report=report))

    # -- what is heard ------------------------------------------------------------------------------------------------

    async def _registered(self, message: Registered) -> None:
        if message.credential:
            identity = Identity(node_uid=message.node_uid, credential=message.credential)
            save_identity(self._config.state_dir, identity)
            self._hold(identity)
        self._heartbeat_seconds = message.heartbeat_seconds
        self._registered_anew.set()
        self._report_seconds = message.report_seconds
        log.info("agent.registered node=%s session=%d", self._config.node_id, message.session)
        await self._apply(message.desired)

    async def _apply(self, desired: Desired) -> None:
        if desired.revision < self._revision:
            return  # computed before an order that has come since
        self._revision = desired.revision
        async with self._applying:
            await self._supervisor.apply(desired)
        self._applied = desired.revision

    async def _take(self, message: Message) -> None:
        match message:
            case Start(command=command, revision=revision, shard=shard):
                self._revision = max(self._revision, revision)
                try:
                    async with self._applying:
                        await self._supervisor.start(shard)
                except OrderRefused as refused:
                    self._link.send(Ack(command=command, accepted=False, code=refused.code, detail=refused.detail))
                    return
                self._done(command, revision)
            case Stop(command=command, revision=revision):
                self._revision = max(self._revision, revision)
                self._done(command, revision)
                await self._supervisor.stop(
                    message.shard, message.epoch, grace_seconds=message.grace_seconds, reason=message.reason
                )
            case Drain(command=command, revision=revision):
                self._revision = max(self._revision, revision)
                self._done(command, revision)
                await self._supervisor.drain(
                    message.shard, message.epoch, deadline_seconds=message.deadline_seconds, reason=message.reason
                )
            case Check():
                if message.check not in self._answering:  # it may take a while: orders go on, and it is asked again
                    self._answering[message.check] = asyncio.create_task(self._answer(message))
            case Sync(desired=desired):
                await self._apply(desired)
            case Refresh():
                await self._report(force=True)
            case Tail(shard=shard, epoch=epoch, lines=lines):
                tail = await asyncio.to_thread(self._supervisor.tail, shard, epoch, min(lines, 1000))
                self._link.send(LogChunk(shard=shard, epoch=epoch, lines=tail))
            case _:
                pass

    def _done(self, command: int, revision: int) -> None:
        self._link.send(Ack(command=command))
        self._applied = max(self._applied, revision)

    # -- hardware -----------------------------------------------------------------------------------------------------

    def _preflight(self, profile: Profile, spec: ShardSpec, replaces: str = "") -> Refusal | None:
        """In a thread. Cards are looked at anew: a stranger may have come since placement was told of them."""
        inventory = self._watch.look() if spec.gpus else self._watch.inventory
        data = inventory.to_json() if inventory else {}
        replaced = self._ledger.entries.get(replaces)
        ours = set(replaced.spec.get("gpus") or ()) if replaced else set()
        cards = [{**gpu, "memory_used_mib": None} if gpu.get("uuid") in ours else gpu for gpu in data.get("gpus") or []]
        owned = self._supervisor.owned_pids()
        facts = {**data, "gpus": cards}
        return preflight.check(self._config, profile, spec, facts, owned, installed=self._installed).refusal

    async def _fetch(
        self, profile: Profile, on_progress: Callable[[str, float | None], None]
    ) -> Profile | tuple[str, str, str]:
        """The model's files, when the node's owner says where they go; else the engine fetches them itself."""
        if self._config.policy.hub is None:
            return profile
        why = self._config.policy.against_hub(profile.model)
        if why is not None:
            return (
                FailureCode.POLICY_REFUSED.value,
                f"cannot fetch {profile.model}: {why}",
                "see policy.hub in agent.yaml",
            )
        found = await weights.fetch(
            self._config,
            profile,
            await asyncio.to_thread(read_secrets, self._config),
            on_progress=lambda now: on_progress(now.phase, now.share),
            stall_seconds=float(profile.start_timeout_seconds),
            environ=base_environment(),
        )
        return found if isinstance(found, Profile) else (found.code, found.text, found.hint)

    def _sick_card(self, spec: ShardSpec) -> tuple[str, str] | None:
        """In a thread, when an engine has failed: the last look may be older than what made it fail."""
        return preflight.sick_card(spec, self._watch.look().to_json()) if spec.gpus else None

    async def _answer(self, message: Check) -> None:
        try:
            self._link.send(await self._checked(message))
        finally:
            del self._answering[message.check]

    async def _checked(self, message: Check) -> Checked:
        try:
            profile = parse_profile(message.spec.profile)
        except ProfileError as error:
            code = FailureCode.INVALID_PROFILE.value
            return await self._against(message, error.problems, code=code, detail=str(error))
        refusal = await self._foresee(profile, message.spec, message.replaces)
        if refusal is None:
            return Checked(check=message.check)
        return await self._against(
            message, refusal.problems, code=refusal.code, detail=refusal.detail, hint=refusal.hint
        )

    async def _against(
        self, message: Check, problems: Sequence[Problem], *, code: str, detail: str, hint: str = ""
    ) -> Checked:
        """The sentence for the list and each problem, without the node's secrets and the profile's."""
        secrets = [*(await asyncio.to_thread(read_secrets, self._config)).values(), *secrets_of(message.spec.profile)]
        detail, hint = redacted([detail, hint], secrets)
        told = tuple(ToldProblem(**each) for each in problems_told(problems, secrets))
        return Checked(check=message.check, code=code, detail=detail, hint=hint, problems=told)

    async def _foresee(self, profile: Profile, spec: ShardSpec, replaces: str) -> Refusal | None:
        """What would stand against it, if what the shard that it replaces holds were free.

        That one runs on meanwhile, so the installed engine has the time to tell of its options.
        """
        command = preflight.command_for(self._config, profile.engine)
        while command and not await asyncio.to_thread(self._installed.settled, profile.engine, command):
            pass
        return await asyncio.to_thread(self._preflight, profile, spec, replaces)

    def _holders(self, gpus: tuple[str, ...]) -> str:
        return still_held(self._watch.look().to_json(), gpus)

    def _surroundings(self, spec: ShardSpec, profile: Profile) -> Mapping[str, Any]:
        """From the last look: a failure must not wait for a sick driver."""
        inventory = self._watch.inventory
        data = inventory.to_json() if inventory else {}
        known = ("index", "uuid", "class", "memory_total_mib", "memory_used_mib", "processes", "problems")
        return {
            "agent": __version__,
            "engine": preflight.available_engines(self._config).get(profile.engine.value, ""),
            "driver": data.get("driver"),
            "cuda": data.get("cuda"),
            "gpus": [{key: g.get(key) for key in known} for g in data.get("gpus") or [] if g.get("uuid") in spec.gpus],
        }


async def _probe(endpoint: str, readiness: Readiness, name: str, key: str | None) -> Probed:
    return await asyncio.to_thread(probes.ready, endpoint, readiness, name=name, key=key)


async def _load(endpoint: str, key: str | None) -> Figures:
    """With a long limit: the page of a busy engine may take its time, and what it then tells is that it works."""
    load = await asyncio.to_thread(probes.load, endpoint, key=key, timeout=LOAD_SECONDS)
    return Figures(running=load.running, waiting=load.waiting, moving=load.moving, refused=load.refused)
