"""axe-core's opinion of the chat page, light and dark, on a desk and on a phone, with all that a row can hold."""

from __future__ import annotations

from typing import Any

from .chromium import Page, Tabs
from .scene import BODIES, DRAFT, FAIL, OPEN, address, fill, serving, story

C = "story/axe"
TEXT = """## Title

Text with `code` and a [link](https://example.org).

```js
let x;
```

| a |
|---|
| 1 |

> quote"""
CALL = {"type": "tool-call", "toolCallId": "c", "toolName": "look", "input": {}}
RESULT = {"type": "tool-result", "toolCallId": "c", "toolName": "look", "output": {"type": "text", "value": "seen"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": TEXT}, CALL]},
    {"role": "tool", "content": [RESULT]},
    {"role": "user", "content": [{"type": "file", "data": "eA==", "mediaType": "text/plain", "filename": "x.txt"}]},
]


async def faults(page: Page, axe: str) -> list[str]:
    await page.get(axe + "; 0")
    told = await page.get("axe.run({resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html']} {node['failureSummary']}"
        for one in told["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


async def test_no_serious_fault(tabs: Tabs, axe: str) -> None:
    agent, pieces = story()
    async with serving(agent) as server:
        await fill(server, C, MESSAGES, by="user:bob")
        page = await tabs.open(address(server, C))
        await page.until(f"{OPEN} && {BODIES}.length === 4")
        await page.get("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        await page.say("my own")
        pieces.put_nowait("an answer that ")
        await page.until(DRAFT)
        for scheme in ("light", "dark"):
            await page.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
            assert await faults(page, axe) == []
        pieces.put_nowait(FAIL)
        await page.until("document.querySelector('.end.error')")
        await page.resize(390, 780, phone=True)
        assert await faults(page, axe) == []
        await page.click("#menu")
        await page.until("getComputedStyle(document.querySelector('#sidebar')).visibility === 'visible'")
        await page.prefer(prefers_color_scheme="light", prefers_reduced_motion="reduce")
        assert await faults(page, axe) == []
