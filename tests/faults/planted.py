"""Faults to plant: each edits the product's text and breaks one promise; and what the simulation has to say to it.

An edit that does not apply any more is an error: then the product has changed, and the fault is planted anew.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FAULTS", "Fault"]


class Edit(NamedTuple):
    """Is a piece of a file, which occurs there once, and what stands in its place."""

    path: str
    old: str
    new: str


class Fault(NamedTuple):
    """Is a fault: its name, a pattern of what is found, its edits, and the first seed to try: one that found it."""

    name: str
    found: str
    edits: tuple[Edit, ...]
    seed: int = 0


HISTORY = "gap without reset|live at another place|duplicate or reorder|lost|no rest|committed row missing"

FAULTS = (
    Fault(
        "no mailbox serialisation",
        "overlap|came behind|never run to its end",
        (
            Edit(
                "actors/mailbox.py",
                "                    await self._handle(item)\n",
                "                    asyncio.ensure_future(self._handle(item))\n",
            ),
        ),
    ),
    Fault(
        "broadcast before commit",
        "told before committed|before commit",
        (
            Edit(
                "storage/committer.py",
                "                    self._disk.write(plan.group, partial(self._written, items, plan, begun))\n",
                "                    for item, told in plan.outcomes:\n"
                "                        if item.told is not None and isinstance(told, Committed) and told.rows:\n"
                "                            item.told(told)\n"
                "                            item.told = None\n"
                "                    self._disk.write(plan.group, partial(self._written, items, plan, begun))\n",
            ),
        ),
    ),
    Fault(
        "read history, then subscribe",
        HISTORY,
        (
            Edit(
                "actors/conversation.py",
                "        # From here to the end in one step:",
                "        asked = decide_start(\n"
                "            request, epoch=self.epoch, floor=self.floor, head=self.head, instant=instant\n"
                "        )\n"
                "        history = await self.read(after=asked.seq)\n"
                "        # From here to the end in one step:",
            ),
            Edit(
                "actors/conversation.py",
                "        return record.hub.subscribe(sink, principal, start.seq)\n",
                "        if history:\n"
                "            from .events import RowsTold\n\n"
                "            sink.tell(RowsTold(self.name, self.epoch, history))\n"
                "        return record.hub.subscribe(sink, principal, self.head)\n",
            ),
        ),
    ),
    Fault(
        "subscribe, then send history",
        HISTORY,
        (
            Edit(
                "actors/conversation.py",
                "        return record.hub.subscribe(sink, principal, start.seq)\n",
                "        from .events import RowsTold\n\n"
                "        subscription = record.hub.subscribe(sink, principal, self.head)\n"
                "        position, head = start.seq, self.head\n"
                "        while position < head:\n"
                "            history = await self.read(after=position, before=head + 1)\n"
                "            sink.tell(RowsTold(self.name, self.epoch, history))\n"
                "            position = history[-1].seq\n"
                "        return subscription\n",
            ),
        ),
    ),
    Fault(
        "listener after snapshot",
        HISTORY,
        (
            Edit(
                "actors/conversation.py",
                "        return record.hub.subscribe(sink, principal, start.seq)\n",
                "        from .events import RowsTold\n\n"
                "        position, snapshot = start.seq, self.head\n"
                "        while position < snapshot:\n"
                "            rows = await self.read(after=position, before=snapshot + 1)\n"
                "            sink.tell(RowsTold(self.name, self.epoch, rows))\n"
                "            position = rows[-1].seq\n"
                "        return record.hub.subscribe(sink, principal, self.head)\n",
            ),
        ),
    ),
    Fault(
        "ack before commit",
        "ack before commit",
        (
            Edit(
                "server/connection.py",
                "        record.post(row, told, settled)\n",
                "        record.post(row).add_done_callback(lambda future: future.cancelled() or future.exception())\n"
                "        self._acknowledge(frame, Committed(record.head + 1))\n",
            ),
        ),
    ),
    Fault(
        "dedupe per connection",
        "two rows of one client id|appended more than once",
        (
            Edit(
                "storage/schema.py",
                "CREATE UNIQUE INDEX message_client",
                "CREATE INDEX message_client",
            ),
            Edit(
                "server/connection.py",
                "        acknowledged = False\n",
                "        seen = self.__dict__.setdefault('_seen', {})\n"
                "        if frame.client_id in seen:\n"
                "            self._acknowledge(frame, Committed(seen[frame.client_id], (), True))\n"
                "            return\n"
                "        acknowledged = False\n",
            ),
            Edit(
                "server/connection.py",
                "            acknowledged = True\n",
                "            acknowledged = True\n            seen[frame.client_id] = committed.seq\n",
            ),
        ),
    ),
    Fault(
        "seq consumed by a refused append",
        "seq gap|told before committed|no rest|gap without reset|below its head",
        (
            Edit(
                "storage/group.py",
                "            plan.outcomes.append((item, _repeat(client_key, first, batch.rows[0])))\n",
                "            plan.outcomes.append((item, _repeat(client_key, first, batch.rows[0])))\n"
                "            tip.head += 1\n"
                "            plan.tips[partition] = tip\n"
                "            partition.head = tip.head\n",
            ),
        ),
    ),
    Fault(
        "checkpoint that drops a commit",
        "lost|told before committed|seq gap|before commit|lacks its message",
        (
            Edit(
                "storage/sqlite.py",
                "            await self._no_reads.wait()\n",
                "            await self._no_reads.wait()\n"
                "            await self._writer.execute_fetchall(\n"
                "                'DELETE FROM message WHERE id = (SELECT max(id) FROM message)'\n"
                "            )\n",
            ),
        ),
    ),
    Fault(
        "cursor moved by a signal",
        "gap without reset|another place|answered|before row|before its rows",
        (
            Edit(
                "actors/hub.py",
                "            if subscription.sink is not sender:\n",
                "            if subscription.sink is not sender:\n                subscription.position += 1\n",
            ),
        ),
    ),
    Fault(
        "sends overtake each other while their actor is being loaded",
        "sends overtook each other",
        (
            Edit(
                "server/connection.py",
                "        return self._perform_on_record(frame, grant)\n",
                "        if isinstance(frame, Send):\n"
                "            self.loop.create_task(self._send_when_loaded(frame, grant))\n"
                "            return None\n"
                "        return self._perform_on_record(frame, grant)\n\n"
                "    async def _send_when_loaded(self, frame: Send, grant: Grant) -> None:\n"
                "        while self.app.runtime.resident(frame.conversation) is None:\n"
                "            loading = self.loop.create_task(self.app.runtime.conversation(frame.conversation))\n"
                "            await asyncio.wait({loading}, timeout=random.uniform(0.001, 0.01))\n"
                "            loading.add_done_callback(lambda task: task.cancelled() or task.exception())\n"
                "        await self._perform_on_record(frame, grant)\n",
            ),
        ),
    ),
    Fault(
        "delta before live",
        "delta before live|delta of a draft that was not told",
        (
            Edit(
                "actors/hub.py",
                "        elif self._live:\n            self._tell_draft_to(event, tuple(self._live))\n",
                "        elif self._subscriptions:\n"
                "            for subscription in tuple(self._subscriptions):\n"
                "                if subscription.sink.writable and not subscription.live:\n"
                "                    self._hand(subscription, event)\n"
                "            self._tell_draft_to(event, tuple(self._live))\n",
            ),
        ),
    ),
    Fault(
        "draft end before row",
        "draft end before row|draft end that its row does not fit|rows between",
        (
            Edit(
                "actors/draft.py",
                "                await self._lane.commit_draft(self, row)\n",
                "                self._lane.end_draft(self, self._lane.conversation.head + 1)\n"
                "                await self._lane.commit_draft(self, row)\n",
            ),
        ),
    ),
    Fault(
        "mark before row",
        "unanswered|a draft that never ends|a turn that never ends|the draft assembled",
        (
            Edit(
                "actors/turns.py",
                "                await self._settle(Batch(rows=(row,)), told)\n",
                "                await self._settle(Batch())\n"
                "                await self._conversation.commit(Batch(rows=(row,)), told)\n",
            ),
        ),
    ),
    Fault(
        "mark lost",
        "runs again, though its answer|mark is durable|answered twice",
        (
            Edit(
                "actors/turns.py",
                "                await self._settle(Batch(rows=(row,)), told)\n",
                "                await self.marks.end_draft((row,), told)\n",
            ),
        ),
    ),
    Fault(
        "queued message in the prompt",
        "queued message in the prompt",
        (
            Edit(
                "actors/turn_log.py",
                '        if not (row.turn is None and row.role == "user" and row.seq > turn) and not (',
                "        if not (",
            ),
        ),
    ),
    Fault(
        "second run of a started tool",
        "second run of a started tool",
        (
            Edit(
                "actors/tools.py",
                "            if job.options.idempotent:\n                return False\n            job.answer(",
                "            if job.function is not None:\n                return False\n            job.answer(",
            ),
        ),
        75,
    ),
    Fault(
        "end of a stopped turn before its mark",
        "mark is durable|its end was told",
        (
            Edit(
                "actors/turns.py",
                "            skipped = await self.marks.skip_turn(turn)\n",
                "            if self._turn != turn:\n"
                '                self._tell(turn, "stopped")\n'
                "            skipped = await self.marks.skip_turn(turn)\n",
            ),
        ),
    ),
    Fault(
        "restored without an epoch of its own",
        "lost|duplicate|another one in the file|no rest|gap|answered|told before|the file has|mark",
        (
            Edit(
                "storage/backup.py",
                "            _renew_epoch(copy)\n",
                "",
            ),
        ),
    ),
    Fault(
        "revocation that stops new opens only",
        "told behind a revocation",
        (
            Edit(
                "server/connection.py",
                '            self._subscriptions[conversation].end("forbidden")\n',
                "            pass\n",
            ),
        ),
    ),
)
