"""Media: what is taken out of a message, what comes back into it, and what a log does with it."""

from __future__ import annotations

import asyncio
from array import array
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest
from msgspec.structs import replace

from parlatory.storage import (
    Batch,
    CodecError,
    Conflict,
    CorruptMedia,
    Engine,
    File,
    Image,
    Media,
    Message,
    MessageLog,
    Partition,
    StorageClosed,
    Text,
    TooLarge,
    ToolMessage,
    ToolResult,
    UnknownMedia,
    assistant_message,
    decode_message,
    hash_of,
    inline_media,
    new_row,
    open_engine,
    tool_message,
    user_message,
)
from parlatory.storage.media import (
    INLINE_BYTES_MAX,
    PIECE_BYTES,
    Blob,
    check_media_type,
    cited,
    cut,
    extract,
    media_ref,
    resolve,
)
from parlatory.storage.memory import MemoryEngine
from parlatory.storage.messages import ContentOutput, TextOutput

PNG = b"\x89PNG\r\n\x1a\n" + bytes(INLINE_BYTES_MAX)
HASH = sha256(PNG).hexdigest()
REF = {"parlatory": f"sha256:{HASH}"}


def text_of(data: bytes) -> str:
    return b64encode(data).decode()


def picture(data: bytes = PNG, **fields: Any) -> Image:
    return Image(data=text_of(data), **fields)


def result(*parts: Any) -> ToolMessage:
    return tool_message([ToolResult(tool_call_id="c", tool_name="t", output=ContentOutput(value=parts))])


# -- taking out


def test_a_picture_above_64_kib_leaves_its_message() -> None:
    message = user_message([Text(text="look"), picture(filename="a.png", detail="low", provider_options={"a": 1})])
    found = extract(message)
    kept = Image(ref=REF, media_type="image/png", filename="a.png", detail="low", provider_options={"a": 1})
    assert found.message == user_message([Text(text="look"), kept])
    assert found.blobs == tuple(cut(HASH, "image/png", PNG))
    assert found.refs == {}
    assert b"".join(blob.data for blob in found.blobs) == PNG


def test_64_kib_stay() -> None:
    for size, stays in ((INLINE_BYTES_MAX, True), (INLINE_BYTES_MAX + 1, False), (INLINE_BYTES_MAX - 1, True)):
        message = user_message([File(data=text_of(bytes(size)), media_type="application/pdf")])
        assert (extract(message).message is message) is stays


@pytest.mark.parametrize(
    "message",
    [
        user_message("x" * 100_000),
        user_message([Text(text="x" * 100_000)]),
        user_message([Image(url="https://example.org/a.png"), Image(ref={"openai": "file-1"}), picture(b"small")]),
        tool_message([ToolResult(tool_call_id="c", tool_name="t", output=TextOutput(value="x" * 100_000))]),
        result(Text(text="x"), picture(b"small")),
    ],
)
def test_what_is_left_as_it_is(message: Message) -> None:
    found = extract(message)
    assert found.message == message
    assert (found.blobs, found.refs) == ((), {})


def test_media_lie_in_results_and_answers_too() -> None:
    file = File(data=text_of(PNG), media_type="application/pdf")
    kept = File(ref=REF, media_type="application/pdf")
    assert extract(assistant_message([file])).message == assistant_message([kept])
    found = extract(result(Text(text="here"), file))
    assert found.message == result(Text(text="here"), kept)
    assert {blob.hash for blob in found.blobs} == {HASH}


def test_the_same_media_are_taken_out_once() -> None:
    cited_too = Image(ref=REF, media_type="image/png")
    found = extract(user_message([cited_too, picture(), picture(media_type="image/jpeg")]))
    assert len(found.blobs) == len(list(cut(HASH, "", PNG)))
    assert found.refs == {}  # what the message brings need not be there before


def test_refs_are_told_with_their_path() -> None:
    other = {"parlatory": "sha256:" + "0" * 64, "openai": "file-1"}
    parts = [Image(ref=REF, media_type="image/png"), Image(ref=REF, media_type="image/png")]
    assert extract(user_message(parts)).refs == {HASH: "$.content[0].ref"}
    found = extract(result(Text(text="x"), File(ref=other, media_type="a/b")))
    assert found.refs == {"0" * 64: "$.content[0].output.value[1].ref"}


@pytest.mark.parametrize(
    ("start", "media_type"),
    [
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"\0\0\0\x1cftypavif", "image/avif"),
    ],
)
def test_the_bytes_tell_the_type(start: bytes, media_type: str) -> None:
    found = extract(user_message([picture(start + bytes(INLINE_BYTES_MAX))]))
    assert {blob.media_type for blob in found.blobs} == {media_type}
    assert found.message == user_message([Image(ref=media_ref(found.blobs[0].hash), media_type=media_type)])


def test_a_big_picture_of_no_known_type_must_say_it() -> None:
    with pytest.raises(CodecError, match="must be given for a picture") as caught:
        extract(result(Text(text="x"), picture(bytes(INLINE_BYTES_MAX + 1))))
    assert caught.value.path == "$.content[0].output.value[1].mediaType"
    extract(user_message([picture(bytes(INLINE_BYTES_MAX + 1), media_type="image/heic")]))


def test_pieces() -> None:
    for size, sizes in ((0, [0]), (1, [1]), (PIECE_BYTES, [PIECE_BYTES]), (PIECE_BYTES + 1, [PIECE_BYTES, 1])):
        blobs = list(cut("h", "a/b", bytes(size)))
        assert [len(blob.data) for blob in blobs] == sizes
        assert [blob.start for blob in blobs] == [index * PIECE_BYTES for index in range(len(sizes))]
        assert {(blob.hash, blob.media_type, blob.size) for blob in blobs} == {("h", "a/b", size)}


# -- names of media


def test_what_names_media() -> None:
    for ref in (HASH, f"sha256:{HASH}", REF, media_ref(HASH), Image(ref=REF), File(ref=REF, media_type="a/b")):
        assert hash_of(ref) == HASH
    for other in ("", HASH[1:], HASH.upper(), "md5:" + HASH, {}, {"openai": HASH}, Image(url="x"), picture()):
        assert hash_of(other) is None


def test_what_lies_in_its_part() -> None:
    assert inline_media(picture(b"GIF87a")) == Media(data=b"GIF87a", media_type="image/gif")
    assert inline_media(picture(b"GIF87a", media_type="a/b")) == Media(data=b"GIF87a", media_type="a/b")
    assert inline_media(picture(b"?")) == Media(data=b"?", media_type="application/octet-stream")
    assert inline_media(Image(ref=REF)) is inline_media(HASH) is None
    assert repr(Media(data=b"123", media_type="a/b")) == "<Media a/b of 3 bytes>"


def test_media_types() -> None:
    for good in ("image/png", "image/svg+xml", "text/plain; charset=utf-8", "application/vnd.ms-excel"):
        assert check_media_type(good) == good
    for bad in ("", "png", "image/", "image/png\r\nX: y", "image/png; a", "\u0131mage/png", "a/b/c"):
        with pytest.raises(ValueError, match="no media type"):
            check_media_type(bad)


# -- putting back


async def test_resolving() -> None:
    fetched: list[str] = []

    async def fetch(hash: str, max_bytes: int) -> Media | None:
        fetched.append(hash)
        return Media(data=PNG, media_type="image/png") if hash == HASH else None

    gone = File(ref=media_ref("0" * 64), media_type="a/b")
    stays = Image(ref={"openai": "file-1"})
    parts: list[Any] = [Text(text="x"), Image(ref=REF, media_type="image/png", detail="low"), gone, stays]
    seen = result(Image(ref=REF, media_type="image/png"))
    messages: list[Message] = [user_message("plain"), user_message(parts), seen, result()]
    found = await resolve(messages, fetch, max_bytes=10 * len(PNG))
    full = picture(media_type="image/png")
    assert found == [
        messages[0],
        user_message([Text(text="x"), picture(media_type="image/png", detail="low"), gone, stays]),
        result(full),
        messages[3],
    ]
    assert fetched == [HASH, "0" * 64]
    assert await resolve([user_message([gone])], fetch, max_bytes=1) == [user_message([gone])]
    assert list(cited("text")) == []


async def test_what_is_taken_out_comes_back() -> None:
    message = user_message([Text(text="look"), picture(media_type="image/png")])
    stored, blobs, _ = extract(message)

    async def fetch(hash: str, max_bytes: int) -> Media:
        return Media(data=b"".join(blob.data for blob in blobs if blob.hash == hash), media_type="image/png")

    assert await resolve([stored], fetch, max_bytes=1 << 20) == [message]


async def test_what_is_put_back_has_a_limit_and_each_use_counts() -> None:
    """The newest come first; what does not fit stays a ref, and is asked for once."""
    fetched: list[str] = []

    async def fetch(hash: str, max_bytes: int) -> Media | None:
        fetched.append(hash)
        return Media(data=PNG, media_type="image/png") if len(PNG) <= max_bytes else None

    shown = Image(ref=REF, media_type="image/png")
    other = Image(ref=media_ref("1" * 64), media_type="image/png")
    found = await resolve([result(shown), user_message([other, shown, shown, shown])], fetch, max_bytes=3 * len(PNG))
    whole = picture(media_type="image/png")
    assert found == [result(shown), user_message([whole, whole, whole, shown])]
    assert fetched == ["1" * 64, HASH]
    neither = [result(shown), result(other)]
    assert await resolve(neither, fetch, max_bytes=len(PNG) - 1) == neither
    assert fetched[2:] == ["1" * 64, HASH]


# -- rows


def test_the_digest_is_of_the_message_as_it_was_given() -> None:
    """Else a send that an older version stored with its picture in the row would be another one when it is repeated."""
    message = user_message([picture(media_type="image/png")])
    stored, row = new_row(message, client_id="c")
    assert (row.digest, row.refs) == (new_row(message, client_id="c")[1].digest, {})
    assert row.digest != new_row(stored, client_id="c")[1].digest
    assert len(row.body) < 200
    assert decode_message(row.body) == stored == extract(message).message
    assert row.media == extract(message).blobs


def test_the_limit_is_of_the_message_as_it_was_given() -> None:
    with pytest.raises(TooLarge) as caught:
        new_row(user_message([picture(bytes(1 << 20), media_type="image/png")]))
    assert caught.value.limit == 1 << 20


@pytest.mark.parametrize("value", ["", "sha256:", f"sha256:{HASH}x", f"sha256:{HASH.upper()}", HASH, "md5:1", 7])
def test_a_ref_of_ours_is_a_hash(value: Any) -> None:
    for part in (Image(ref={"parlatory": value}, media_type="a/b"), File(ref={"parlatory": value}, media_type="a/b")):
        with pytest.raises(CodecError) as caught:
            new_row(user_message([part]))
        assert caught.value.path == "$.content[0].ref.parlatory"


def test_a_ref_of_ours_stands_beside_its_type() -> None:
    with pytest.raises(CodecError) as caught:
        new_row(result(Image(ref=REF)))
    assert caught.value.path == "$.content[0].output.value[0].mediaType"
    new_row(user_message([Image(ref={"openai": "file-1"})]))


# -- logs


@pytest.fixture
async def partition(engine: Engine) -> Partition:
    return await engine.partition("bot/a")


@pytest.fixture
async def log(partition: Partition) -> MessageLog:
    return MessageLog(partition)


async def test_a_log_keeps_pictures_beside_their_rows(partition: Partition) -> None:
    told: list[Message] = []
    log = MessageLog(partition, lambda rows: told.extend(row.message for row in rows))
    message = user_message([picture(media_type="image/png")])
    assert await log.append(message, client_id="c") == await log.append(message, client_id="c") == 1
    await log.append_many([message, user_message("plain")])
    rows = await log.all()
    stored = user_message([Image(ref=REF, media_type="image/png")])
    assert [row.message for row in rows] == told == [stored, stored, user_message("plain")]
    (part,) = rows[0].content
    for ref in (part, REF, HASH, f"sha256:{HASH}", picture()):
        assert await log.media(ref) == Media(data=PNG, media_type="image/png")
    with_data, again, plain = await log.to_openai()
    assert with_data == again
    assert text_of(PNG) in str(with_data)
    assert plain == {"role": "user", "content": "plain"}
    assert text_of(PNG) in str(await log.to_anthropic())
    assert text_of(PNG) in str(await log.to_langchain())


async def test_media_are_put_before_their_row(log: MessageLog) -> None:
    big = bytes(range(256)) * 6000  # six pieces, two batches
    ref = await log.put_media(big, "application/pdf")
    assert ref == media_ref(sha256(big).hexdigest())
    await log.append(user_message([File(ref=ref, media_type="application/pdf")]))
    assert await log.media(ref) == Media(data=big, media_type="application/pdf")
    assert await log.put_media(b"", "text/plain") == media_ref(sha256().hexdigest())
    assert await log.media(sha256().hexdigest()) == Media(data=b"", media_type="text/plain")


async def test_media_are_bounded(log: MessageLog) -> None:
    with pytest.raises(TooLarge) as caught:
        await log.put_media(b"12345", "a/b", max_bytes=4)
    assert (caught.value.size, caught.value.limit) == (5, 4)
    with pytest.raises(ValueError, match="no media type"):
        await log.put_media(b"12345", "pdf")
    ref = await log.put_media(b"12345", "a/b", max_bytes=5)
    with pytest.raises(TooLarge):
        await log.media(ref, max_bytes=4)
    assert (await log.media(ref, max_bytes=5)).data == b"12345"


async def test_only_bytes_are_media_and_they_are_copied(log: MessageLog) -> None:
    for data in (5, "x", None):
        with pytest.raises(TypeError):
            await log.put_media(data, "a/b")  # type: ignore[arg-type]
    numbers = array("I", [1, 2, 3])
    assert (await log.media(await log.put_media(memoryview(numbers), "a/b"))).data == numbers.tobytes()
    changing = bytearray(b"before")
    putting = asyncio.ensure_future(log.put_media(changing, "a/b"))
    await asyncio.sleep(0)
    changing[:] = b"behind"
    assert (await log.media(await putting)).data == b"before"


@pytest.mark.parametrize("ref", [5, None, b"x", [], {"parlatory": 5}, "x", object()])
async def test_what_is_no_ref_is_none(log: MessageLog, ref: Any) -> None:
    with pytest.raises(ValueError, match="names no media"):
        await log.media(ref)


async def test_media_that_are_not_there(log: MessageLog, engine: Engine) -> None:
    """Neither read nor referred to: what another conversation holds is not there."""
    other = MessageLog(await engine.partition("bot/b"))
    ref = await other.put_media(PNG, "image/png")
    with pytest.raises(UnknownMedia) as unknown:
        await log.media(ref)
    assert (unknown.value.hash, unknown.value.path) == (HASH, "$")
    with pytest.raises(UnknownMedia, match="put them there first") as refused:
        await log.append(user_message([Text(text="x"), Image(ref=ref, media_type="image/png")]))
    assert (refused.value.code, refused.value.path) == ("bad_message", "$.content[1].ref")
    assert await log.count() == 0
    for elsewhere in (Image(url="https://example.org"), {"openai": "file-1"}, "file-1"):
        with pytest.raises(ValueError, match="names no media"):
            await log.media(elsewhere)


class Trimmed:
    """Stands in front of a partition whose media go when their first piece has been read."""

    name, head = "bot/a", 0

    async def commit(self, *_: object) -> Any:
        raise NotImplementedError

    async def read(self, **_: object) -> Any:
        raise NotImplementedError

    async def media(self, hash: str, start: int = 0) -> Blob | None:
        return next(cut(hash, "a/b", bytes(PIECE_BYTES + 1))) if start == 0 else None


async def test_media_that_go_while_they_are_read() -> None:
    with pytest.raises(UnknownMedia):
        await MessageLog(Trimmed()).media(HASH)


async def test_refused_messages_leave_no_media(log: MessageLog) -> None:
    with pytest.raises(Conflict):
        await log.append(user_message([picture(media_type="image/png")]), expected_seq=5)
    with pytest.raises(UnknownMedia):
        await log.media(HASH)


async def test_rows_cost_the_same_with_pictures(log: MessageLog) -> None:
    """T54: fifty pictures of 500 KB, then the last twenty messages: their bytes are not read."""
    data = [index.to_bytes(2, "big") * 250_000 for index in range(50)]
    for one in data:
        await log.append(user_message([Text(text="look"), picture(one, media_type="image/png")]))
    refs = [Image(ref=media_ref(sha256(one).hexdigest()), media_type="image/png") for one in data]
    await log.append(user_message(refs))
    rows = await log.last(20)
    assert [row.content[1] for row in rows[:-1]] == refs[-19:]
    assert rows[-1].content == tuple(refs)
    sizes = [len(row.body) for row in await log._partition.read(limit=100)]
    assert max(sizes[:-1]) < 300
    assert sizes[-1] < 50 * 200


async def test_a_closed_engine(engine: Engine, log: MessageLog) -> None:
    ref = await log.put_media(b"x", "a/b")
    await engine.close()
    with pytest.raises(StorageClosed):
        await log.put_media(b"x", "a/b")
    with pytest.raises(StorageClosed):
        await log.media(ref)


async def test_an_upload_does_not_hold_up_others(partition: Partition, log: MessageLog) -> None:
    """A big upload is many batches, between which those of others are written."""
    sizes: list[int] = []
    commit = partition.engine.commit

    def counted(partition: Partition, batch: Batch, told: Any = None) -> Any:
        sizes.append(sum(len(blob.data) for blob in batch.uploads))
        return commit(partition, batch, told)

    partition.engine.commit = counted  # type: ignore[method-assign]
    data = bytes(5 * PIECE_BYTES)
    await asyncio.gather(log.put_media(data, "a/b"), log.append(user_message("hi")))
    assert max(sizes) <= 1 << 20
    assert sum(sizes) == len(data)


class Rotten(Trimmed):
    """Stands in front of a partition whose media have rotted."""

    async def media(self, hash: str, start: int = 0) -> Blob | None:
        return Blob(hash=hash, media_type="image/png", size=len(PNG), start=0, data=PNG[:-1] + b"!")


async def test_media_that_are_not_what_was_stored() -> None:
    with pytest.raises(CorruptMedia, match="parlatory check") as corrupt:
        await MessageLog(Rotten()).media(HASH)
    assert (corrupt.value.conversation, corrupt.value.hash) == ("bot/a", HASH)


async def test_a_prompt_does_without_media_that_are_corrupt() -> None:
    engine = await open_engine("memory:")
    log = MessageLog(await engine.partition("bot/a"))
    await log.append(user_message([Text(text="look"), picture(media_type="image/png")]))
    assert isinstance(engine, MemoryEngine)
    for media in engine._tables[1].media.values():
        media.pieces = {start: replace(blob, data=b"!" * len(blob.data)) for start, blob in media.pieces.items()}
    asked = str(await log.to_openai())
    assert "look" in asked and "!!!" not in asked
    await engine.close()


async def test_a_prompt_does_without_media_that_are_gone() -> None:
    """A model is asked all the same."""
    engine = await open_engine("memory:")
    log = MessageLog(await engine.partition("bot/a"))
    await log.append(user_message([Text(text="look"), picture(media_type="image/png")]))
    assert isinstance(engine, MemoryEngine)
    engine._tables[1].media.clear()
    assert "look" in str(await log.to_openai())
    await engine.close()
