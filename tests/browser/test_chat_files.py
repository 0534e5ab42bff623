"""What goes with a message in the chat page: pictures and files, by button, paste and drop; and what is too large."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from ..server.peers import Relay, history
from .chromium import Page, Tabs
from .scene import OPEN, address, serving, shown

C = "relay/files"
TWO_MB = "2 MB of text. " * 150_000
# A picture of noise, which nothing can compress, as a file.
NOISE = """async (width, height, name) => {
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    for (let i = 0; i < image.data.length; i += 65536) crypto.getRandomValues(image.data.subarray(i, i + 65536));
    for (let i = 3; i < image.data.length; i += 4) image.data[i] = 255;
    context.putImageData(image, 0, 0);
    return new File([await canvas.convertToBlob({ type: "image/png" })], name, { type: "image/png" });
}"""
PROBLEM = "document.querySelector('#problem')"
ATTACHED = "[...document.querySelectorAll('#attachments span')].map((one) => one.textContent)"


async def give(page: Page, kind: str, file: str) -> None:
    """Pastes or drops a file, which is an expression of JavaScript."""
    event = (
        "new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true})"
        if kind == "paste"
        else "new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true})"
    )
    await page.get(f"""(async () => {{
        const data = new DataTransfer();
        data.items.add(await {file});
        document.querySelector("#input").dispatchEvent({event});
    }})()""")


async def choose(page: Page, *paths: Path) -> None:
    """Chooses files as the dialog of the button does."""
    root = (await page.command("DOM.getDocument"))["root"]["nodeId"]
    node = await page.command("DOM.querySelector", nodeId=root, selector="#files")
    await page.command("DOM.setFileInputFiles", files=[str(path) for path in paths], nodeId=node["nodeId"])


async def test_two_megabytes_of_text_are_refused_before_they_are_sent(tabs: Tabs) -> None:
    async with serving(Relay) as server:
        page = await tabs.open(address(server, C))
        await page.until(OPEN)
        await page.get(f"(document.querySelector('#input').value = {json.dumps(TWO_MB)}, 0)")
        await page.press("Enter")
        await page.until(f"!{PROBLEM}.hidden")
        assert await page.text("#problem") == (
            "This message is too large: 2.1 MB, and a message may have 1.0 MB. It was not sent."
        )
        assert await page.get("document.querySelector('#input').value.length") == len(TWO_MB)
        assert await page.get("document.querySelectorAll('.row').length") == 0
        await page.get("(document.querySelector('#input').value = '', 0)")
        await page.type("short")
        assert await page.get(f"{PROBLEM}.hidden")
        await page.press("Enter")
        await shown(page, "short")
        assert len(await history(server, C)) == 1
        assert page.errors == []


async def test_a_message_near_the_limit_is_sent_and_shown_in_part(tabs: Tabs) -> None:
    async with serving(Relay) as server:
        page = await tabs.open(address(server, C))
        await page.until(OPEN)
        text = "large " * 150_000
        await page.get(f"(document.querySelector('#input').value = {json.dumps(text)}, 0)")
        await page.press("Enter")
        await page.until("document.querySelector('#rows .text button')")
        assert await page.text("#rows .text button") == "Show all (900 kB)"
        assert len(await page.text("#rows .text")) < 50_000
        await page.get("document.querySelector('#rows .text button').click()")
        assert len(await page.text("#rows .text")) > 890_000
        assert page.errors == []


async def test_files_by_button_paste_and_drop(tabs: Tabs, tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("a note", encoding="utf-8")
    async with serving(Relay) as server:
        page = await tabs.open(address(server, C))
        await page.until(OPEN)
        await choose(page, note)
        await page.until(f"{ATTACHED}.length === 1")
        await give(page, "paste", f"({NOISE})(20, 20, 'small.png')")
        await give(page, "drop", f"({NOISE})(10, 10, 'away.png')")
        await page.until(f"{ATTACHED}.length === 3")
        assert await page.get(ATTACHED) == ["note.txt", "small.png", "away.png"]
        await page.click("#attachments li:last-child button")
        await page.type("see")
        await page.press("Enter")
        await page.until("document.querySelector('#rows .picture img')?.naturalWidth === 20")
        assert (await page.text("#rows button.file")).split() == ["⤓", "note.txt", "6", "bytes"]
        [row] = await history(server, C)
        parts: list[dict[str, Any]] = row["message"]["content"]
        assert [one["type"] for one in parts] == ["text", "file", "image"]
        assert base64.b64decode(parts[1]["data"]) == b"a note"
        assert [one.get("mediaType") for one in parts] == [None, "text/plain", "image/png"]
        assert await page.get("document.querySelector('#attachments').hidden")
        await page.click("#rows .picture")
        await page.until("document.querySelector('dialog.enlarged[open] img')")
        await page.press("Escape")
        await page.until("!document.querySelector('dialog.enlarged')")
        assert page.errors == []


async def test_a_large_picture_is_made_smaller_and_a_large_file_refused(tabs: Tabs, tmp_path: Path) -> None:
    large = tmp_path / "large.zip"
    large.write_bytes(bytes(2_000_000))
    broken = tmp_path / "broken.png"
    broken.write_bytes(bytes(2_000_000))
    async with serving(Relay) as server:
        page = await tabs.open(address(server, C))
        await page.until(OPEN)
        await choose(page, large)
        await page.until(f"{PROBLEM}.textContent === 'large.zip is too large to send'")
        await choose(page, broken)
        await page.until(f"{PROBLEM}.textContent.startsWith('broken.png is too large to send, and no picture')")
        await give(page, "paste", f"({NOISE})(1200, 900, 'photo.png')")
        await page.until(f"{ATTACHED}.length === 1")
        await give(page, "paste", f"({NOISE})(600, 600, 'second.png')")
        await page.until(f"{PROBLEM}.textContent.startsWith('With second.png the message is too large')")
        assert await page.get(ATTACHED) == ["photo.png"]
        await page.press("Enter")
        await page.until("document.querySelector('#rows .picture img')?.naturalWidth > 0")
        [row] = await history(server, C)
        assert row["message"]["content"][0]["mediaType"] == "image/jpeg"
        assert page.errors == []
