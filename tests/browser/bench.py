"""What the chat page costs in a browser.

    python -m tests.browser.bench

Prints, as JSON: when the first rows are seen after a load (of a conversation of 10,000 rows, from the navigation on),
which share of a core the page takes for a draft of 200 deltas a second (its main thread, and its whole process) and how
often it shows more of it, and how long frames take while 10,000 rows are scrolled through.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from parlatory.actors import Agent
from parlatory.storage import StoredMessage

from ..server.peers import Relay
from .chromium import Browser, Chromium, Page
from .scene import DRAFT, OPEN, address, fill, serving
from .test_chat_rows import SCROLL_UP, texts

LOADS = 9
DELTAS_PER_S = 200
STREAM_S = 20
WORDS = "the quick *brown* fox jumps over the `lazy` dog and\n\n".split(" ")
FIRST_ROWS = """new Promise((resolve) => {
    const seen = () => resolve(performance.now());
    const look = () => document.querySelector("#rows .row") ? requestAnimationFrame(seen) : setTimeout(look, 1);
    look();
})"""


# Counts how often what is being written changes on the screen.
COUNT_UPDATES = """(() => {
    globalThis.updates = 0;
    const all = { childList: true, characterData: true, subtree: true };
    new MutationObserver(() => (globalThis.updates += 1)).observe(document.querySelector("#tail"), all);
})()"""


class Stream(Agent):
    """Writes 200 words a second."""

    async def on_message(self, row: StoredMessage) -> None:
        start = time.monotonic()
        async with self.reply() as draft:
            for number in range(DELTAS_PER_S * STREAM_S):
                await draft.write(WORDS[number % len(WORDS)] + " ")
                await asyncio.sleep(max(0.0, start + number / DELTAS_PER_S - time.monotonic()))


async def first_rows(page: Page) -> float:
    times: list[float] = []
    for _ in range(LOADS):
        await page.reload()
        times.append(await page.get(FIRST_ROWS))
    return float(statistics.median(times))


async def draft(page: Page) -> dict[str, float]:
    await page.until(OPEN)
    await page.say("go")
    await page.until(DRAFT)
    # The page would report each frame of its socket to these tools, which costs 0.004 of a core and no reader pays.
    await page.command("Network.disable")
    await page.get(COUNT_UPDATES)
    before = await page.metrics()
    await asyncio.sleep(STREAM_S - 2)
    after = await page.metrics()
    assert await page.get("document.visibilityState") == "visible"
    updates = await page.get("updates")
    took = after["Timestamp"] - before["Timestamp"]
    # The times of threads, not of clocks: what else the machine does is left out.
    counted = {"main thread": "ThreadTime", "process": "ProcessTime"}
    shares = {what: round((after[name] - before[name]) / took, 3) for what, name in counted.items()}
    return shares | {"updates/s": round(updates / took, 1)}


async def measure(chromium: Chromium) -> None:
    async with serving(Relay, Stream) as server, Browser.to(chromium) as browser:
        await fill(server, "relay/rows", texts(10_000), by="user:bob")
        async with browser.tabs() as tabs:
            page = await tabs.open(address(server, "relay/rows"))
            await page.until(OPEN)
            say({"first rows, ms": round(await first_rows(page))})
            await page.until(OPEN)
            frames = sorted((await page.get(SCROLL_UP))["frames"])
            spread = {f"p{share}": round(frames[len(frames) * share // 100], 1) for share in (50, 95, 99)}
            say({"frames while scrolling, ms": spread})
        async with browser.tabs() as tabs:
            shares = await draft(await tabs.open(address(server, "stream/x")))
            say({"a draft of 200 deltas/s, cores": shares})


def say(figures: object) -> None:
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def main() -> None:
    program = shutil.which("chromium")
    if program is None:
        sys.exit("there is no Chromium: run tests/browser/setup.sh")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        chromium = Chromium(program, Path(folder))
        try:
            asyncio.run(measure(chromium))
        finally:
            chromium.stop()


if __name__ == "__main__":
    main()
