"""Faults that look like none: processes that pause and go on, rows that a person deletes, files of old."""

import contextlib
import shutil
from typing import TYPE_CHECKING

from fleet.domain.states import NodeStatus
from fleet.models import CatalogModel, Node
from fleet.services import catalog, operations
from fleet.services.errors import FleetError
from tests.simulate.machine import Machine
from tests.simulate.network import AGAIN_SECONDS
from tests.simulate.world import World

if TYPE_CHECKING:
    from tests.simulate.schedule import Judge


def agent_is_paused(world: World, judge: "Judge") -> None:
    """Long enough to be lost, too: then it goes on with orders and timers of long ago."""
    machine = world.chance.choice(world.machines)
    world.pause(machine.agent, world.chance.uniform(1.0, 40.0))


def web_is_paused(world: World, judge: "Judge") -> None:
    world.pause(world.web, world.chance.uniform(1.0, 20.0))


def worker_is_paused(world: World, judge: "Judge") -> None:
    world.pause(world.worker, world.chance.uniform(1.0, 20.0))


def worker_is_paused_between_decision_and_deed(world: World, judge: "Judge") -> None:
    world.pause_decided = world.chance.uniform(1.0, 40.0)


def model_is_deleted(world: World, judge: "Judge") -> None:
    """In the middle of whatever it does; half of them are wished for again, a moment later or much later."""
    if world.database_away or world.database_full:
        return
    names = list(CatalogModel.objects.order_by("pk").values_list("name", flat=True))
    if not names:
        return
    name = world.chance.choice(names)
    world.note(f"{name} is deleted")
    catalog.delete_model(name, actor="simulation")
    judge.wished[name]["revision"] = 1
    if world.chance.random() < 0.5:
        world.after(world.chance.uniform(0.1, 20.0), _wish_again, world, judge, name)


def _wish_again(world: World, judge: "Judge", name: str) -> None:
    if not world.over:
        judge.wish(name)


def node_is_deleted(world: World, judge: "Judge") -> None:
    """Its agent there, or long gone; one that holds shards may not be. It must join anew, with its engines still on."""
    machine = world.chance.choice(world.machines)
    if world.chance.random() < 0.7:
        world.kill_agent(machine)
    world.after(world.chance.uniform(0.0, 40.0), _delete_node, world, judge, machine)
    world.after(world.chance.uniform(5.0, 40.0), world.start_agent, machine)


def _delete_node(world: World, judge: "Judge", machine: Machine) -> None:
    node = Node.objects.filter(name=machine.name).first()
    if world.over or world.database_away or world.database_full or node is None:
        return
    with contextlib.suppress(FleetError):  # it holds something
        operations.delete_node(node=node, actor="simulation", now=world.wall_now())
        world.note(f"{machine.name} is deleted")
        judge.excused.add(machine.name)
        judge.deleted.add(machine.name)
        world.after(world.chance.uniform(0.0, 30.0), join_anew, world, machine)


def join_anew(world: World, machine: Machine) -> None:
    """What `agent join` does on a machine whose node is gone."""
    if world.over or world.database_away or Node.objects.filter(name=machine.name).exists():
        return
    world.note(f"{machine.name} joins anew")
    world.kill_agent(machine)
    (machine.folder / "identity.json").unlink(missing_ok=True)
    world.start_agent(machine)


def old_ledger_is_put_back(world: World, judge: "Judge") -> None:
    """What a restored backup does: the ledger tells of engines that ended, and not of those that run."""
    machine = world.chance.choice(world.machines)
    ledger = machine.folder / "ledger.json"
    if ledger.exists():
        old = ledger.read_bytes()
        world.after(world.chance.uniform(1.0, 20.0), _put_back, world, machine, old)


def _put_back(world: World, machine: Machine, old: bytes) -> None:
    if not world.over:
        world.kill_agent(machine)
        world.note(f"an old ledger of {machine.name} is put back")
        (machine.folder / "ledger.json").write_bytes(old)
        world.after(world.chance.uniform(0.1, 10.0), world.start_agent, machine)


def identity_is_copied(world: World, judge: "Judge") -> None:
    """A machine's disk is cloned, with its machine id or without: two agents live with one identity."""
    original = world.chance.choice(world.machines)
    if world.copy is not None or not (original.folder / "identity.json").exists():
        return
    world.note(f"a copy of {original.name} comes")
    same_id = world.chance.random() < 0.5
    world.copy = Machine(f"{original.name}-copy", len(original.uuids), original.folder.with_name("copy"))
    world.copy.node_id, world.copy.machine_id = original.name, original.machine_id if same_id else "machine-copy"
    shutil.copytree(original.folder, world.copy.folder)
    world.start_agent(world.copy)


def take_copy_away(world: World) -> None:
    """What an operator does about it: the copy is switched off, and who was quarantined is released once nothing that
    it said is on its way any more: the first word after that is believed."""
    if world.copy is None:
        return
    world.reboot(world.copy)
    for seconds in (AGAIN_SECONDS + 1, 20.0, 40.0):  # a paused process may hear of both only later
        world.after(seconds, _release, world)


def _release(world: World) -> None:
    for node in Node.objects.filter(status=NodeStatus.QUARANTINED):
        if not world.over:
            operations.release_quarantine(node=node, actor="simulation")
