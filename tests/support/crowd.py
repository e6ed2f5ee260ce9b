"""Many agents' streams from one process, with nothing on their machines: `python -m tests.support.crowd URL COUNT`."""

import asyncio
import os
import sys

from agent_client.link import Link
from agent_client.protocol.messages import Heartbeat, Message, Register, Registered


class Agent:
    def __init__(self, url: str, number: int) -> None:
        self.name = f"crowd-{number:03}"
        self.known: Registered | None = None
        self.link = Link(
            server=url,
            join_secret=os.environ["LLMGW_AGENT_JOIN_SECRET"],
            node_id=self.name,
            register=self._register,
            on_registered=self._registered,
            on_message=self._pass,
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.link.run())
            tasks.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.known.heartbeat_seconds if self.known else 0.1)
            self.link.send(Heartbeat())

    async def _register(self) -> Register:
        return Register(
            protocol=1,
            agent_version="0.1.0",
            node_id=self.name,
            machine_id=self.name,
            boot_id="boot",
            instance_id="crowd",
            hostname=self.name,
            mgmt_addr="127.0.0.1",
            node_uid=self.known.node_uid if self.known else None,
            credential=self.credential if self.known else None,
        )

    async def _registered(self, message: Registered) -> None:
        self.known = message
        if message.credential:
            self.credential = message.credential

    async def _pass(self, message: Message) -> None:
        """Nothing is asked of them."""


async def main(url: str, count: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(Agent(url, number).run())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
