"""Who makes trouble in a world, and ends it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from parlatory.storage import ParlatoryError, StorageError, backup_data, restore_data

if TYPE_CHECKING:
    from .world import World

__all__ = ["Trouble"]


# Behind what a process is killed best: what it wrote, told, asked, began or ended.
MOMENTS = ("handled", "handled", "mark", "commit", "tool", "tool", "ask", "begin", "leave", "->")


class Trouble:
    """Does one nasty thing after the other; `heal` ends it all."""

    def __init__(self, world: World) -> None:
        random = world.random
        self._world = world
        self._pause_s = random.choice((0.05, 0.3, 1.5))
        self._count = 0
        # A run has few kinds of trouble, so that there are also runs in which storage is sound, or no process dies.
        chances = {
            self._ambush: 0.7,
            self._kill: 0.4,
            self._stop: 0.4,
            self._cut: 0.4,
            self._deafen: 0.3,
            self._stall: 0.3,
            self._unreachable: 0.3,
            self._storage: 0.3,
            self._flush: 0.3,
            self._cancel: 0.3,
            self._restore: 0.2,
            self._revoke: 0.2,
            self._jump: 0.1,
        }
        self._kinds = [kind for kind, chance in chances.items() if random.random() < chance]
        self._kinds += [self._ambush] * self._kinds.count(self._ambush)  # it may have to wait for long
        self._kinds.append(self._webhook)
        self._restores = 0

    async def run(self, seconds: float) -> None:
        """Makes trouble for a while."""
        random = self._world.random
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await asyncio.sleep(self._pause_s * random.random())
            await self._see_to_it()
            await random.choice(self._kinds)()

    async def heal(self) -> None:
        """Ends all trouble, and makes sure that a server runs, a new one where storage was disturbed."""
        world = self._world
        network = world.network
        network.unreachable = False
        world.forbidden.clear()
        for connection in network.connections:
            connection.client.stall(False)
        if world.host is not None:
            world.host.disk.faults.clear()
        await self._see_to_it()
        if world.storage_trouble:
            # What the turn lane could not read or commit waits for the next message or the next start.
            await (self._stop() if world.random.random() < 0.5 else self._kill())
        await self._see_to_it()

    async def end(self) -> None:
        """Stops the server."""
        host = self._world.host
        assert host is not None
        host.stop(0)
        while not host.done:  # noqa: ASYNC110 - on another loop
            await asyncio.sleep(0.1)
        host.ended()

    async def _see_to_it(self) -> None:
        """Restarts a server that has ended, or that storage has failed, as its supervisor does."""
        world = self._world
        if world.host is not None and world.host.disk.failed:
            world.kill()
        host = world.host or world.start()
        while not host.ready and not host.done:  # noqa: ASYNC110 - on another loop
            await asyncio.sleep(0.05)

    # -- the network

    async def _cut(self) -> None:
        connections = self._world.network.connections
        if connections:
            self._world.random.choice(connections).cut()

    async def _deafen(self) -> None:
        random = self._world.random
        if self._world.network.connections:
            up, down = random.choice(((True, False), (False, True), (True, True)))
            random.choice(self._world.network.connections).deafen(up=up, down=down)

    async def _stall(self) -> None:
        if self._world.network.connections:
            client = self._world.random.choice(self._world.network.connections).client
            client.stall(not client.stalled)

    async def _unreachable(self) -> None:
        self._world.network.unreachable = not self._world.network.unreachable

    # -- the process

    async def _kill(self) -> None:
        if self._world.host is not None:
            self._world.kill()
            await asyncio.sleep(self._world.random.random())

    async def _ambush(self) -> None:
        """Kills the process just behind an event of some kind, if one comes soon."""
        world = self._world
        sprung = asyncio.Event()
        world.history.wait_for(world.random.choice(MOMENTS), sprung.set)
        waiting = asyncio.ensure_future(sprung.wait())
        await asyncio.wait({waiting}, timeout=0.5)
        if sprung.is_set():
            await asyncio.sleep(world.random.choice((0.0, 0.001, 0.02)) * world.random.random())
            await self._kill()
        else:
            waiting.cancel()

    async def _stop(self) -> None:
        world = self._world
        host = world.host
        if host is None or host.disk.failed:
            return
        host.stop(world.random.choice((0.0, 1.0, 5.0)))
        limit = world.random.choice((1.0, 60.0))
        started = asyncio.get_running_loop().time()
        while not host.done and asyncio.get_running_loop().time() < started + limit:
            await asyncio.sleep(0.05)
            if host.engine is not None and host.engine.failed is not None:
                break
        if host.done:
            host.ended()
            world.host = None
        else:
            world.kill()  # its supervisor has lost patience

    async def _restore(self) -> None:
        """Makes a backup of the live server, and restores it after a while: what came since never was."""
        world = self._world
        if world.host is None or not world.host.ready:
            return
        self._restores += 1
        backup = world.host.disk.directory.parent / f"backup {self._restores}"
        restored = backup.parent / f"restored {self._restores}"
        world.history.add("backup", self._restores)
        backup_data(world.host.disk.directory, backup)
        stops = world.model.stops_so_far()
        await asyncio.sleep(world.random.choice((0.3, 1.0)) * world.random.random())
        await (self._stop() if world.random.random() < 0.5 else self._kill())
        if world.host is None:
            restore_data(backup, restored)
            world.restored(restored)
            world.model.restored(stops)

    async def _jump(self) -> None:
        """Sets the clock of the server, as somebody does by hand."""
        world = self._world
        world.clock_off_s = world.random.choice((-3600.0, 0.0, 86400.0, world.random.uniform(-2, 2)))
        world.history.add("clock", world.clock_off_s)

    async def _revoke(self) -> None:
        """Takes somebody's access to a conversation away, for a while; or closes their sockets."""
        world = self._world
        host = world.host
        if world.forbidden:
            world.forbidden.clear()
        elif host is not None and host.ready and host.server is not None:
            principals = sorted({one.principal.name for one in host.server._connections if one.principal is not None})
            if principals:
                everything = world.random.random() < 0.3
                conversation = None if everything else world.random.choice(world.conversations)
                host.revoke(world.random.choice(principals), conversation)

    async def _cancel(self) -> None:
        """Stops a turn from inside of the process."""
        world = self._world
        host = world.host
        if host is None or not host.ready or host.runtime is None:
            return
        conversation = world.random.choice(world.conversations)
        turn = world.random.choice((None, world.truth.head(conversation)))
        agent, _, name = conversation.partition("/")
        ref = host.runtime.get(agent, name)

        async def cancel() -> None:
            if host.loop.dead:
                return
            world.model.stopped(conversation, turn)
            world.history.add("cancel", conversation, turn)
            try:
                await ref.cancel(turn)
            except StorageError as error:
                world.history.add("cancel", conversation, error.code)

        host.loop.call_soon(lambda: host.keep(host.loop.create_task(cancel(), name="cancel")))

    # -- storage

    async def _storage(self) -> None:
        world = self._world
        host = world.host
        if host is not None and host.ready:
            world.storage_trouble = True
            kind = world.random.choice(("full", "write", "busy", "read"))
            world.history.add("fault", kind)
            host.disk.faults[kind] = world.random.randint(1, 3)

    async def _flush(self) -> None:
        world = self._world
        if world.host is not None and world.host.ready and world.random.random() < 0.2:
            world.storage_trouble = True
            world.history.add("fault", "flush")
            world.host.disk.faults["flush"] = 1

    # -- beside the clients

    async def _webhook(self) -> None:
        """Appends from inside of the process, and again under the same id."""
        world = self._world
        host = world.host
        if host is None or not host.ready or host.runtime is None:
            return
        self._count += 1
        agent, _, name = world.random.choice(world.conversations).partition("/")
        ref = host.runtime.get(agent, name)
        client_id = f"hook-{self._count}"
        kind = world.random.choice(("say", "draft"))
        era = world.truth.era

        async def append() -> None:
            seqs = set()
            try:
                for _ in range(world.random.choice((1, 2))):
                    seqs.add(
                        await ref.append(
                            {"role": "user", "content": f"{kind} {client_id};"}, by="hook", client_id=client_id
                        )
                    )
            except ParlatoryError as error:
                world.history.add("hook", ref.name, client_id, error.code)
            if len(seqs) > 1 and era == world.truth.era:
                world.history.problem(f"two seqs for client id {client_id}: {seqs}")
            if not host.loop.dead:
                world.history.add("hook", ref.name, client_id, *sorted(seqs))

        host.loop.call_soon(lambda: host.keep(host.loop.create_task(append(), name=client_id)))
