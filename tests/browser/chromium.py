"""Chromium without a window, driven over its DevTools protocol: JSON over a WebSocket, which needs no driver."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

__all__ = ["Browser", "Chromium", "Page", "Tabs"]

Json = dict[str, Any]
START_S = 30.0
DEADLINE_S = 15.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-smooth-scrolling",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--mute-audio",
    "--remote-debugging-port=0",
)
KEYS = {
    "Enter": {"code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    "Escape": {"code": "Escape", "windowsVirtualKeyCode": 27},
    "Tab": {"code": "Tab", "windowsVirtualKeyCode": 9},
}


class Chromium:
    """Is the process. One serves all tests: its start is what costs."""

    def __init__(self, program: str, folder: Path) -> None:
        self.folder = folder
        command = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        nothing = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        self._rest = threading.Thread(target=self._drop_rest, name="what chromium says", daemon=True)
        self.url = self._await_url()

    def _await_url(self) -> str:
        """Waits until it says where it listens; before the tests, where nothing else waits."""
        assert self.process.stderr is not None
        late = threading.Timer(START_S, self.process.kill)
        late.start()
        try:
            for line in self.process.stderr:
                if line.startswith("DevTools listening on "):
                    return line.split()[-1]
        finally:
            late.cancel()
            self._rest.start()
        self.stop()
        raise RuntimeError(f"Chromium did not start within {START_S:g} s")

    def _drop_rest(self) -> None:
        """Reads what it says later: nobody wants it, but it must not wait for a reader."""
        assert self.process.stderr is not None
        with self.process.stderr as said:
            for _ in said:
                pass

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._rest.join(10)


class Browser:
    """Is a connection to the process: commands and their answers, events to the page they are of."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self.pages: dict[str, Page] = {}
        self._trace: list[Json] = []
        self._traced = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def to(cls, chromium: Chromium) -> AsyncIterator[Browser]:
        async with connect(chromium.url, max_size=None, compression=None, ping_interval=None, proxy=None) as connection:
            browser = cls(connection)
            reading = asyncio.create_task(browser._read())
            try:
                yield browser
            finally:
                if not reading.cancel():
                    reading.result()
                await asyncio.wait({reading})

    async def _read(self) -> None:
        async for text in self._connection:
            frame: Json = json.loads(text)
            if "id" in frame:
                self._answers.pop(frame["id"]).set_result(frame)
            elif page := self.pages.get(frame.get("sessionId", "")):
                page.heard(frame["method"], frame["params"])
            elif frame["method"] == "Tracing.dataCollected":
                self._trace += frame["params"]["value"]
            elif frame["method"] == "Tracing.tracingComplete":
                self._traced.set()

    async def command(self, method: str, session: str | None = None, **parameters: Any) -> Json:
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        frame = {"id": number, "method": method, "params": parameters}
        await self._connection.send(json.dumps(frame if session is None else frame | {"sessionId": session}))
        async with asyncio.timeout(2 * DEADLINE_S):
            told = await answer
        assert "error" not in told, f"{method}: {told['error']}"
        result: Json = told["result"]
        return result

    @asynccontextmanager
    async def traced(self, category: str) -> AsyncIterator[list[Json]]:
        """Collects what the engine says of its work; complete at the end."""
        self._trace = []
        self._traced.clear()
        wanted = {"includedCategories": [category], "excludedCategories": ["*"]}
        await self.command("Tracing.start", transferMode="ReportEvents", traceConfig=wanted)
        yield self._trace
        await self.command("Tracing.end")
        async with asyncio.timeout(2 * DEADLINE_S):
            await self._traced.wait()

    @asynccontextmanager
    async def tabs(self) -> AsyncIterator[Tabs]:
        """A reader of his own: what a page keeps is there for his other tabs, and gone at the end."""
        context = (await self.command("Target.createBrowserContext"))["browserContextId"]
        try:
            yield Tabs(self, context)
        finally:
            await self.command("Target.disposeBrowserContext", browserContextId=context)


class Tabs:
    """Are the tabs of one reader."""

    def __init__(self, browser: Browser, context: str) -> None:
        self.browser = browser
        self.context = context

    async def open(self, url: str, *, width: int = 1200, height: int = 800) -> Page:
        """Opens a page in a tab of its own and waits until it has loaded."""
        command = self.browser.command
        target = await command("Target.createTarget", url="about:blank", browserContextId=self.context, newWindow=True)
        attached = await command("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(self.browser, attached["sessionId"], target["targetId"])
        self.browser.pages[attached["sessionId"]] = page
        for domain in ("Page", "Runtime", "Log", "Performance", "Network"):
            await page.command(f"{domain}.enable")
        await page.command("Emulation.setFocusEmulationEnabled", enabled=True)  # each is the window in front
        await page.resize(width, height)
        await page.goto(url)
        return page


class Page:
    """Is one tab. `errors` holds what its console complained about, and what nobody caught."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser = browser
        self.session = session
        self.target = target
        self.errors: list[str] = []
        self._loaded = asyncio.Event()

    def heard(self, method: str, event: Json) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Runtime.exceptionThrown":
                details = event["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            case "Runtime.consoleAPICalled" if event["type"] in ("error", "warning", "assert"):
                self.errors.append(" ".join(str(one.get("value", one.get("description"))) for one in event["args"]))
            case "Log.entryAdded" if event["entry"]["level"] in ("error", "warning"):
                self.errors.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")

    async def command(self, method: str, **parameters: Any) -> Json:
        return await self.browser.command(method, self.session, **parameters)

    async def goto(self, url: str) -> None:
        self._loaded.clear()
        told = await self.command("Page.navigate", url=url)
        assert not told.get("errorText"), told
        await self._load()

    async def reload(self) -> None:
        self._loaded.clear()
        await self.command("Page.reload")
        await self._load()

    async def _load(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self._loaded.wait()

    async def close(self) -> None:
        del self.browser.pages[self.session]
        await self.browser.command("Target.closeTarget", targetId=self.target)

    async def get(self, expression: str) -> Any:
        """Evaluates an expression; a promise is awaited."""
        told = await self.command("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, expression: str, deadline_s: float = DEADLINE_S) -> Any:
        """Waits in the page until an expression is true; returns it."""
        script = f"""new Promise((resolve) => {{
            const end = performance.now() + {deadline_s * 1000};
            const look = () => {{
                const value = ({expression});
                if (value || performance.now() > end) resolve(value instanceof Node ? true : value);
                else setTimeout(look, 10);
            }};
            look();
        }})"""
        value = await self.get(script)
        assert value, (
            f"not within {deadline_s:g} s: {expression}; the page says {await self.get('document.body.innerText')!r}"
        )
        return value

    async def text(self, selector: str) -> str:
        found: str = await self.get(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    async def click(self, selector: str) -> None:
        """Presses the mouse where an element is: one that is covered does not get it."""
        place = await self.get(
            f"(() => {{ const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.command(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )

    async def type(self, text: str) -> None:
        await self.command("Input.insertText", text=text)

    async def press(self, key: str, shift: bool = False) -> None:
        details = KEYS[key] | {"key": key, "modifiers": 8 if shift else 0}
        await self.command("Input.dispatchKeyEvent", type="keyDown", **details)
        await self.command("Input.dispatchKeyEvent", type="keyUp", **details)

    async def wheel(self, selector: str, delta_y: float) -> None:
        place = await self.get(
            f"(() => {{ const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        await self.command(
            "Input.dispatchMouseEvent", type="mouseWheel", x=place[0], y=place[1], deltaX=0, deltaY=delta_y
        )

    async def say(self, text: str) -> None:
        """Writes a message and sends it."""
        await self.get("document.querySelector('#input').focus()")
        await self.type(text)
        await self.press("Enter")

    async def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        await self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )

    async def prefer(self, **features: str) -> None:
        """Sets what the reader prefers: `prefers_color_scheme="dark"`."""
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        await self.command("Emulation.setEmulatedMedia", features=listed)

    async def offline(self, offline: bool) -> None:
        """Tells the page that there is no network, as the system would; sockets that are open stay so."""
        await self.command(
            "Network.emulateNetworkConditions", offline=offline, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )

    async def metrics(self) -> dict[str, float]:
        told = await self.command("Performance.getMetrics")
        return {one["name"]: one["value"] for one in told["metrics"]}

    async def screenshot(self, path: Path) -> None:
        told = await self.command("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(told["data"]))
