"""One agent's stream: bytes ↔ session ↔ services. It alone holds the stream, so it alone delivers.

What a message means is decided in services; here it is only made sure that each reaches them: writes that fail because
the database is away are kept, newest per subject, and tried again, so a stream never drops for the database's sake.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer

from agent_client import __version__
from agent_client.protocol.messages import (
    SUBPROTOCOL,
    SUPPORTED_VERSIONS,
    Ack,
    Check,
    Checked,
    Error,
    Goodbye,
    Heartbeat,
    Message,
    Refresh,
    Register,
    Registered,
    Report,
    ShardStatus,
    Sync,
)
from agent_client.protocol.session import Closed, Event, Received, Rejected, Role, RoundTrip, Session
from agent_client.protocol.states import CloseCode
from fleet.agents import auth
from fleet.agents.database import AWAY, in_database
from fleet.agents.pump import Delivery, pump
from fleet.clock import at_now
from fleet.conf import fleet_conf
from fleet.services import commands, nodes, reports, rollouts
from fleet.services.errors import FleetError
from fleet.services.heartbeats import Beat

log = logging.getLogger(__name__)


class AgentConsumer(AsyncWebsocketConsumer):
    """See the module. `__call__` replaces Channels' dispatch: no layer, no thread hop per message (half the CPU)."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        self._send = send
        self._remote = auth.remote(scope)
        self._session = Session(Role.SERVER, now=time.monotonic())
        self._admission: nodes.Admission | None = None
        self._verified = False
        self._pending: dict[tuple[str, str], Callable[[], Awaitable[None]]] = {}
        self._draining = asyncio.Lock()
        self._delivered: dict[str, float] = {}
        await receive()  # websocket.connect
        offered = scope.get("subprotocols") or []
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if SUBPROTOCOL in offered else None})
        refused = auth.refusal(scope)
        if refused:
            code, name, detail, hint = refused
            log.warning("agent.refused remote=%s code=%s", self._remote, name)
            return await self._refuse(code, name, detail, hint)
        ticker = asyncio.create_task(self._tick())
        try:
            await self._read(receive)
        finally:
            ticker.cancel()
            await asyncio.wait({ticker})  # to await it itself would mix its cancellation up with one of ours
            with contextlib.suppress(asyncio.CancelledError):
                ticker.result()
            await self._leave()

    # -- loop ---------------------------------------------------------------------------------------------------------

    async def _read(self, receive: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self._session.close(CloseCode.NORMAL, f"the connection ended ({message.get('code')})")
                return
            text = message.get("text")
            text = message.get("bytes") if text is None else text
            for event in self._session.receive(text or "", time.monotonic()):
                await self._handle(event)
            await self._flush()
            if self._session.closed:
                await self._close_socket(self._session.closed)
                return

    async def _tick(self) -> None:
        """Pings, and second tries of what the database did not take."""
        while not self._session.closed:
            await asyncio.sleep(1.0 if self._pending else self._pause())
            for event in self._session.tick(time.monotonic()):
                await self._handle(event)
            await self._flush()
            await self._drain_pending()
        await self._close_socket(self._session.closed)

    def _pause(self) -> float:
        return min(max(self._session.next_deadline() - time.monotonic(), 0.01), 1.0)

    async def _handle(self, event: Event) -> None:
        match event:
            case Received(message=message):
                await self._take(message)
            case RoundTrip() if not self._verified and self._admission:
                await self._later(("verify", ""), self._verify)
            case Rejected(code=code, about=about):
                log.warning("agent.message_rejected node=%s code=%s about=%s", self._name, code, about)
            case Closed(code=code, reason=reason):
                log.info("agent.closing node=%s code=%d reason=%s", self._name, code, reason)
            case _:
                pass

    async def _take(self, message: Message) -> None:
        match message:
            case Register():
                await self._register(message)
            case Heartbeat():
                self._beat(message)
            case ShardStatus(report=report):
                await self._later(("shard", report.shard), lambda: self._shard_status(message))
            case Report():
                # Whole state: what single shards said before is part of it.
                self._pending = {key: call for key, call in self._pending.items() if key[0] != "shard"}
                await self._later(("report", ""), lambda: self._report(message))
            case Ack(command=command):
                await self._later(("ack", str(command)), lambda: self._ack(message))
            case Checked(check=check):
                await self._later(("check", str(check)), lambda: self._checked(message))
            case Error(code="unknown_type", about=Check.TYPE) if self._admission:
                await self._later(("checks", ""), self._skip_checks)
            case Goodbye(reason=reason):
                self._session.close(CloseCode.NORMAL, f"goodbye: {reason}")
            case Error(code=code, detail=detail):
                log.warning("agent.error node=%s code=%s detail=%s", self._name, code, detail[:500])
            case _:
                pass

    # -- registration -------------------------------------------------------------------------------------------------

    async def _register(self, message: Register) -> None:
        if message.protocol not in SUPPORTED_VERSIONS:
            ours = ", ".join(str(version) for version in SUPPORTED_VERSIONS)
            detail = (
                f"cannot register {message.node_id}: its agent {message.agent_version} speaks protocol "
                f"{message.protocol}, this control plane {__version__} speaks {ours}"
            )
            hint = (
                f"on the node, with the files of llmgw {__version__}: "
                "`python -m pip install -r requirements-agent.txt && python -m agent_client`; engines go on meanwhile"
            )
            return await self._refuse(CloseCode.VERSION, "protocol_unsupported", detail, hint)
        pump()  # from here on somebody listens; without that nobody's silence counts, and after it reboots are believed
        try:
            admission = await in_database(at_now, nodes.register_node, message=message, remote=self._remote)
        except FleetError as error:
            log.warning("agent.refused node=%s remote=%s code=%s", message.node_id, self._remote, error.code)
            close = CloseCode.UNAVAILABLE if error.code == nodes.STILL_HEARD else CloseCode.REFUSED
            return await self._refuse(close, error.code, error.detail, error.hint)
        except AWAY as error:
            log.warning("agent.unavailable node=%s error=%s", message.node_id, type(error).__name__)
            return await self._refuse(
                CloseCode.UNAVAILABLE, "database_away", "cannot register now: the database is away", "it is tried again"
            )
        self._admission = admission
        conf = fleet_conf()
        heartbeat = pump().heartbeat_seconds(conf.heartbeat.total_seconds())
        self._session.send(
            Registered(
                session=admission.session_id,
                node_uid=admission.node_uid,
                server_version=__version__,
                heartbeat_seconds=heartbeat,
                desired=admission.desired,
                report_seconds=conf.report_every.total_seconds(),
                reconnect_spread_seconds=pump().reconnect_spread_seconds(),
                credential=admission.credential,
            )
        )
        self._session.ping(time.monotonic())
        await pump().add(self)
        log.info("agent.registered node=%s session=%d remote=%s", self._name, admission.session_id, self._remote)

    async def _verify(self) -> None:
        assert self._admission
        await in_database(
            at_now,
            nodes.verify_node,
            node_id=self._admission.node_id,
            session_id=self._admission.session_id,
        )
        self._verified = True

    # -- what agents say ----------------------------------------------------------------------------------------------

    def _beat(self, message: Heartbeat) -> None:
        if self._admission:
            pump().beats[self._admission.session_id] = Beat(
                desired_revision=message.desired_revision, inventory_stale_seconds=message.inventory_stale_seconds
            )

    async def _shard_status(self, message: ShardStatus) -> None:
        assert self._admission
        astray = await in_database(
            at_now,
            reports.apply_shard_status,
            node_id=self._admission.node_id,
            session_id=self._admission.session_id,
            report=message.report,
        )
        await self._sync(astray)

    async def _report(self, message: Report) -> None:
        assert self._admission
        astray = await in_database(
            at_now,
            reports.apply_whole_report,
            node_id=self._admission.node_id,
            session_id=self._admission.session_id,
            report=message,
        )
        await self._sync(astray)

    async def _sync(self, astray: bool) -> None:
        if astray and self._admission:
            desired = await in_database(commands.desired_for, self._admission.node_id)
            await self.say(Sync(desired=desired))

    async def _ack(self, message: Ack) -> None:
        assert self._admission
        await in_database(
            at_now,
            reports.apply_answer,
            command_id=message.command,
            node_id=self._admission.node_id,
            session_id=self._admission.session_id,
            accepted=message.accepted,
            code=message.code,
            detail=message.detail,
        )

    async def _checked(self, message: Checked) -> None:
        assert self._admission
        await in_database(
            at_now,
            rollouts.answer_check,
            node_id=self._admission.node_id,
            session_id=self._admission.session_id,
            answer=message,
        )

    async def _skip_checks(self) -> None:
        assert self._admission
        await in_database(
            at_now,
            rollouts.skip_checks,
            node_id=self._admission.node_id,
            session_id=self._admission.session_id,
        )

    async def _later(self, key: tuple[str, str], call: Callable[[], Awaitable[None]]) -> None:
        self._pending.pop(key, None)
        self._pending[key] = call
        await self._drain_pending()

    async def _drain_pending(self) -> None:
        async with self._draining:
            for key, call in list(self._pending.items()):
                try:
                    await call()
                except AWAY as error:
                    log.warning("agent.write_kept node=%s about=%s error=%s", self._name, key[0], type(error).__name__)
                    return
                except Exception:
                    # One message that can't be stored must not end the stream, nor be tried for ever.
                    log.exception("agent.write_failed node=%s about=%s", self._name, key[0])
                if self._pending.get(key) is call:
                    del self._pending[key]

    # -- what the pump asks -------------------------------------------------------------------------------------------

    @property
    def admission(self) -> nodes.Admission:
        assert self._admission
        return self._admission

    async def deliver(self, deliveries: list[Delivery]) -> None:
        """Send orders; one that is under way is sent again only after a while without an answer."""
        now = time.monotonic()
        open_now = {delivery.key for delivery in deliveries}
        self._delivered = {key: at for key, at in self._delivered.items() if key in open_now}
        for delivery in deliveries:
            if now - self._delivered.get(delivery.key, -1e9) > RESEND_AFTER_SECONDS:
                self._delivered[delivery.key] = now
                log.info("agent.order node=%s order=%s type=%s", self._name, delivery.key, delivery.message.TYPE)
                await self.say(delivery.message)

    async def say(self, message: Message) -> None:
        if not self._session.closed:
            self._session.send(message)
            await self._flush()

    async def refresh(self) -> None:
        await self.say(Refresh())

    async def supersede(self, why: str) -> None:
        """A newer stream speaks for this node, or the node is gone."""
        if not self._session.closed:
            closed = self._session.close(CloseCode.SUPERSEDED, why)
            await self._flush()
            await self._close_socket(closed)

    # -- ending -------------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return self._admission.node_name if self._admission else "-"

    async def _refuse(self, code: CloseCode, name: str, detail: str, hint: str) -> None:
        if not self._session.closed:
            self._session.send(Error(code=name, detail=detail, hint=hint))
            await self._flush()
            await self._close_socket(self._session.close(code, detail))

    async def _flush(self) -> None:
        for frame in self._session.frames():
            await self._send({"type": "websocket.send", "text": frame})

    async def _close_socket(self, closed: Closed | None) -> None:
        if closed:
            reason = closed.reason.encode()[:120].decode(errors="ignore")  # a close frame holds 123 bytes
            with contextlib.suppress(Exception):  # the transport may be gone already
                await self._send({"type": "websocket.close", "code": int(closed.code), "reason": reason})

    async def _leave(self) -> None:
        if self._admission is None:
            return
        pump().remove(self)
        reason = self._session.closed.reason if self._session.closed else "the listener is stopping"
        try:
            await in_database(at_now, nodes.close_session, session_id=self._admission.session_id, reason=reason)
        except AWAY:
            log.warning("agent.close_unrecorded node=%s", self._name)
        log.info("agent.left node=%s session=%d reason=%s", self._name, self._admission.session_id, reason)


#: An order without an answer is sent again; it is idempotent by its epoch.
RESEND_AFTER_SECONDS = 15.0
