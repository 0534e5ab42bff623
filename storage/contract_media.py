"""What every engine keeps of media; part of the contract."""

from __future__ import annotations

import asyncio
from hashlib import sha256

from .contract_base import EngineTests, raised, row
from .engine import Batch, Committed, Partition
from .errors import ClientIdConflict, Conflict, TooLarge, UnknownMedia
from .media import PIECE_BYTES, Blob, cut

__all__ = ["MediaContract"]

BIG = bytes(range(256)) * (PIECE_BYTES * 5 // 512) + b"end"


def pieces(data: bytes, media_type: str = "image/png") -> list[Blob]:
    """Cuts media into pieces."""
    return list(cut(sha256(data).hexdigest(), media_type, data))


async def whole(partition: Partition, hash: str) -> bytes | None:
    """Reads media piece by piece, as far as they go."""
    data = b""
    while (blob := await partition.media(hash, len(data))) is not None:
        assert (blob.hash, blob.start) == (hash, len(data))
        data += blob.data
        if len(data) == blob.size:
            return data
    return None


class MediaContract(EngineTests):
    """Is what every engine keeps of media."""

    async def test_media_come_with_their_row(self) -> None:
        """They are there once the row is, in pieces, byte for byte, with their type; rows do not hold them."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            blobs = [*pieces(BIG), *pieces(b"", "text/plain"), *pieces(b"\0\xff" * 9, "x/y")]
            assert (await partition.commit(Batch(rows=[row("look", media=blobs)]))).seq == 1
            for data in (BIG, b"", b"\0\xff" * 9):
                assert await whole(partition, sha256(data).hexdigest()) == data
            assert await partition.media(blobs[-2].hash) == blobs[-2]
            for start, place in ((0, 0), (PIECE_BYTES - 1, 0), (PIECE_BYTES, 1), (len(BIG) - 1, 2)):
                assert await partition.media(blobs[0].hash, start) == blobs[place]
            for start in (-1, len(BIG), len(BIG) + PIECE_BYTES):
                assert await partition.media(blobs[0].hash, start) is None
            assert [found.body for found in await partition.read()] == [row("look").body]
            assert await partition.keys() == {}

    async def test_media_are_their_conversations_alone(self) -> None:
        """Who knows a hash can do nothing with it elsewhere: it is read, and referred to, where it was put."""
        async with self.opened() as engine:
            partition, other = await engine.partition("bot/a"), await engine.partition("bot/b")
            (blob,) = pieces(b"picture")
            assert await partition.media(blob.hash) is None
            await partition.commit(Batch(rows=[row(media=[blob])]))
            await other.commit(Batch(rows=[row()]))
            assert await other.media(blob.hash) is None
            foreign = Batch(rows=[row(refs=["0" * 64]), row(refs=[blob.hash])])
            refused = await raised(UnknownMedia, other.commit(foreign))
            assert (refused.hash, refused.path, refused.code) == ("0" * 64, "$.content[0].ref", "bad_message")
            assert (await other.commit(Batch(rows=[row("next")]))).seq == 2
            assert (await partition.commit(Batch(rows=[row(refs=[blob.hash])]))).seq == 2

    async def test_a_ref_may_come_right_behind_its_media(self) -> None:
        """Batches that wait together are judged in their order, whether or not they share a group."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            (blob,) = pieces(b"picture")
            batches = [Batch(rows=[row(refs=[blob.hash])]), Batch(rows=[row(media=[blob])]), Batch(rows=[row("3")])]
            futures = [partition.submit(batch) for batch in (*batches, batches[0])]
            early, first, second, third = await asyncio.gather(*futures, return_exceptions=True)
            assert isinstance(early, UnknownMedia)
            assert [found.seq for found in (first, second, third) if isinstance(found, Committed)] == [1, 2, 3]

    async def test_uploads(self) -> None:
        """Media that are put before their row may come in several batches; they are there when they are whole."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            first, second, last = pieces(BIG)
            await partition.commit(Batch(uploads=[last, first]))
            assert await partition.media(first.hash) is None
            await raised(UnknownMedia, partition.commit(Batch(rows=[row(refs=[first.hash])])))
            assert partition.head == 0
            await partition.commit(Batch(uploads=[second]))
            await partition.commit(Batch(uploads=[first, second]))
            assert await whole(partition, first.hash) == BIG
            assert (await partition.commit(Batch(rows=[row(refs=[first.hash])]))).seq == 1

    async def test_the_same_media_are_stored_once(self) -> None:
        """Whoever puts them again, the type is the first one's."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            for media_type in ("image/png", "text/html"):
                blobs = pieces(BIG, media_type)
                await partition.commit(Batch(rows=[row(media=[*blobs, *blobs]), row(media=blobs)]))
            assert await partition.media(blobs[0].hash) == pieces(BIG, "image/png")[0]
            assert await whole(partition, blobs[0].hash) == BIG

    async def test_refused_batches_leave_no_media(self) -> None:
        """Media become true with their batch, or not at all; a repeat brings none."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            await partition.commit(Batch(rows=[row("1", client_id="c")]))
            (blob,) = pieces(b"picture")
            batch = Batch(rows=[row(media=[blob])], expected_seq=7)
            await raised(Conflict, partition.commit(batch))
            await raised(ClientIdConflict, partition.commit(Batch(rows=[row("2", client_id="c", media=[blob])])))
            assert (await partition.commit(Batch(rows=[row("1", client_id="c", media=[blob])]))).duplicate
            await raised(TooLarge, partition.commit(Batch(rows=[row(media=pieces(BIG * 8))])))
            assert await partition.media(blob.hash) is None
            for bad in (Blob(hash="h", media_type="x/y", size=9, start=0, data=b"1"), pieces(BIG)[0]):
                cut_wrong = Blob(hash=bad.hash, media_type="x/y", size=bad.size, start=1, data=bad.data)
                await raised(ValueError, partition.commit(Batch(uploads=[cut_wrong])))
            assert partition.head == 1

    async def test_a_repeat_needs_its_media_no_more(self) -> None:
        """A repeat is answered as ever, though the media that it refers to are gone by now."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            (blob,) = pieces(b"picture")
            send = Batch(rows=[row(client_id="c", media=[blob])])
            await partition.commit(send)
            again = Batch(rows=[row(client_id="c", refs=["0" * 64])])
            assert await partition.commit(again) == Committed(1, (), True)

    async def test_media_are_there_again(self) -> None:
        """After a restart media are as they were, and may be referred to."""
        engine = await self.open()
        partition = await engine.partition("bot/a")
        blobs = pieces(BIG)
        await partition.commit(Batch(rows=[row(media=blobs)], uploads=pieces(b"upload")))
        try:
            engine = await self.reopen(engine)
            partition = await engine.partition("bot/a")
            assert await whole(partition, blobs[0].hash) == BIG
            refs = [blobs[0].hash, pieces(b"upload")[0].hash]
            assert (await partition.commit(Batch(rows=[row(refs=refs)]))).seq == 2
        finally:
            await engine.close()
