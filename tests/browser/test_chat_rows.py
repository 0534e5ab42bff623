"""What the chat page makes of rows: many of them, hostile ones, Markdown, tools, reasoning, how an answer ended."""

from __future__ import annotations

import json
from typing import Any

from parlatory.actors import Agent
from parlatory.storage import StoredMessage

from ..server.peers import Relay, history
from .chromium import Tabs
from .scene import BODIES, DRAFT, OPEN, address, fill, serving, shown, story

ROWS = 10_000
C = "relay/rows"
SEQS = "[...document.querySelectorAll('#rows .row')].map((one) => Number(one.dataset.seq))"
HOSTILE = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "[click](javascript:window.hacked=1) <a href='javascript:window.hacked=1'>here</a>",
    "![picture](https://example.org/track.png)",
    "<svg onload=window.hacked=1><style>*{display:none}</style>",
    "<iframe srcdoc='<script>parent.hacked = 1</script>'></iframe><form action=//a.example><input name=x>",
    "```html\n<script>window.hacked = 1</script>\n```",
    "| a |\n|---|\n| <b onmouseover=window.hacked=1>b</b> |",
    "[x](data:text/html,<script>window.hacked=1</script>)",
    "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=window.hacked=1&gt;\">",
)  # fmt: skip
# Scrolls up by three screens per frame until the beginning is there; returns how long frames took, and how many
# elements there were at most.
SCROLL_UP = """new Promise((resolve) => {
    const scroller = document.querySelector("#messages");
    const frames = [];
    let elements = 0;
    let last = performance.now();
    const step = (now) => {
        frames.push(now - last);
        last = now;
        elements = Math.max(elements, document.querySelectorAll("#rows .row").length);
        const begun = !document.querySelector("#beginning").hidden;
        if (begun && scroller.scrollTop < 1) return resolve({ frames, elements });
        scroller.scrollTop -= 2500;
        requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
})"""


def texts(count: int) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": f"row {number} " + "of some length " * (number % 7)}
        for number in range(1, count + 1)
    ]


async def test_ten_thousand_rows_scroll(tabs: Tabs) -> None:
    async with serving(Relay) as server:
        await fill(server, C, texts(ROWS), by="user:bob")
        page = await tabs.open(address(server, C))
        await page.until(f"{OPEN} && {SEQS}.at(-1) === {ROWS}")
        before = await page.metrics()
        told = await page.get(SCROLL_UP)
        after = await page.metrics()
        assert told["elements"] <= 400
        # The page's own time, not the clock's: on a machine that has other things to do a frame says little.
        assert (after["ThreadTime"] - before["ThreadTime"]) / len(told["frames"]) < 0.04
        seqs = await page.get(SEQS)
        assert seqs[0] == 1
        assert seqs == list(range(1, len(seqs) + 1))
        # The reader stays where he is while rows come, and is taken to the end when he asks.
        await page.until("!document.querySelector('#latest').hidden")
        await server.runtime.get(Relay, "rows").append({"role": "user", "content": "new"}, by="user:bob")
        place = await page.get("[document.querySelector('#messages').scrollTop]")
        assert place == [0]
        await page.click("#latest")
        await page.until(f"{SEQS}.at(-1) === {ROWS + 1} && document.querySelector('#latest').hidden")
        # And down again from the middle, window by window.
        await page.get("document.querySelector('#messages').scrollTop = 0")
        await page.until(f"{SEQS}[0] < {ROWS - 100}")
        await page.get("document.querySelector('#messages').scrollTop = 0")
        for _ in range(30):
            await page.get("(document.querySelector('#messages').scrollTop += 5000, 0)")
            if await page.get("document.querySelector('#latest').hidden"):
                break
        await page.until(f"{SEQS}.at(-1) === {ROWS + 1}")
        seqs = await page.get(SEQS)
        assert seqs == list(range(seqs[0], ROWS + 2))
        assert page.errors == []


async def test_scrolling_up_keeps_what_the_reader_reads_in_place(tabs: Tabs) -> None:
    async with serving(Relay) as server:
        await fill(server, C, texts(400), by="user:bob")
        page = await tabs.open(address(server, C))
        await page.until(f"{OPEN} && {SEQS}.at(-1) === 400")
        # The first row that is seen keeps its place when older ones are put before it, and when new ones come.
        mark = """(() => {
            const top = document.querySelector("#messages").getBoundingClientRect().top;
            const row = [...document.querySelectorAll("#rows .row")].find(
                (one) => one.getBoundingClientRect().bottom > top,
            );
            return [row.dataset.seq, Math.round(row.getBoundingClientRect().top)];
        })()"""
        await page.get("document.querySelector('#messages').scrollTop = 1300")
        first = f"{SEQS}[0]"
        await page.get(f"globalThis.before = {first}")
        await page.get("(document.querySelector('#messages').scrollTop = 1190)")
        held = await page.get(mark)
        await page.until(f"{first} < globalThis.before")
        after = await page.get(
            f"(() => {{ const row = document.querySelector('[data-seq=\"{held[0]}\"]');"
            " return Math.round(row.getBoundingClientRect().top); })()"
        )
        assert abs(after - held[1]) <= 1
        await server.runtime.get(Relay, "rows").append({"role": "user", "content": "new"}, by="user:bob")
        await page.until("!document.querySelector('#latest').hidden")
        assert page.errors == []


async def test_text_is_never_markup(tabs: Tabs) -> None:
    async with serving(Relay) as server:
        await fill(server, C, [{"role": "user", "content": one} for one in HOSTILE], by=HOSTILE[0])
        await fill(server, C, [{"role": "assistant", "content": one} for one in HOSTILE])
        page = await tabs.open(address(server, C))
        await page.until(f"{BODIES}.length === {2 * len(HOSTILE)}")
        bodies = await page.get(BODIES)
        assert bodies[: len(HOSTILE)] == list(HOSTILE)
        assert bodies[len(HOSTILE)] == HOSTILE[0]
        assert await page.get("typeof window.hacked") == "undefined"
        bad = "script, style, iframe, form, input, svg, math, img, [onerror], [onload], [onmouseover], [style]"
        assert (
            await page.get(f"[...document.querySelectorAll('#messages :is({bad})')].map((one) => one.outerHTML)") == []
        )
        links = await page.get("[...document.querySelectorAll('#messages a')].map((one) => one.href)")
        assert {one.partition(":")[0] for one in links} == {"", "https"}
        names = await page.get("document.querySelector('#rows .name').textContent")
        assert names == HOSTILE[0]
        assert page.errors == []


async def test_a_message_that_is_a_script_from_the_keyboard(tabs: Tabs) -> None:
    async with serving(Relay) as server:
        page = await tabs.open(address(server, C))
        await page.until(OPEN)
        await page.say(HOSTILE[0])
        await shown(page, HOSTILE[0])
        assert await page.text("#title") == HOSTILE[0]
        assert await page.get("typeof window.hacked") == "undefined"
        assert page.errors == []


async def test_markdown(tabs: Tabs) -> None:
    text = "# Title\n\n1. one\n2. two\n\n- [x] done\n\n```python\nprint('hi')\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    async with serving(Relay) as server:
        await fill(server, C, [{"role": "assistant", "content": text}])
        page = await tabs.open(address(server, C))
        await page.until(f"{BODIES}.length === 1")
        got = await page.get("""(() => {
            const find = (one) => document.querySelector(`#rows ${one}`)?.textContent.trim();
            return ["h3", "ol li + li", "ul li", ".code pre", ".caption span", "td + td"].map(find);
        })()""")
        assert got == ["Title", "two", "☑ done", "print('hi')", "python", "2"]
        await page.browser.command(
            "Browser.grantPermissions",
            permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
            browserContextId=tabs.context,
        )
        await page.click(".copy")
        await page.until("document.querySelector('.copy').textContent === 'Copied'")
        assert await page.get("navigator.clipboard.readText()") == "print('hi')\n"
        assert page.errors == []


async def test_a_text_that_overwhelms_the_parser_is_shown_as_it_was_written(tabs: Tabs) -> None:
    """Quotes in quotes in quotes, and emphasis that begins and begins: the rest of the page goes on."""
    hostile = (">" * 20_000, "1. " * 13_000, "*a_" * 13_000)
    async with serving(Relay) as server:
        await fill(server, C, [{"role": "assistant", "content": text} for text in (*hostile, "*behind*")])
        page = await tabs.open(address(server, C))
        await page.until(f"{BODIES}.length === 4")
        assert (await page.get(BODIES))[3] == "behind"
        assert [len(text) for text in await page.get(f"{BODIES}.map((one) => one.trim())")][2] == len(hostile[2])
        took = await page.get(f"""(async () => {{
            const {{ GrowingText, markdown }} = await import("./chat/markdown.js");
            const begun = performance.now();
            for (const text of {json.dumps(hostile)}) {{
                markdown(text);
                new GrowingText(document.createElement("div")).update(text);
            }}
            return performance.now() - begun;
        }})()""")
        assert took < 30_000  # each was a minute, or an error
        assert page.errors == []


GROWING = (
    "one\n\ntwo *three* four\n\n- a\n- b\n\n  more of b\n\n1. x\n   ```js\n   let y = 1;\n\n   let z;\n   ```\n2. y\n\n"
    "> quote\n> more\n\nend",
    "text\n---\nafter\n\n***\n\n***bold*** and ~~gone~~\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    "```\ncode\n\n\n# no title\n```\nlast",
    "# T\n## U\ntext\r\nnext line\r\n\r\npara <b>not bold</b>\n\n<div>\nnot markup\n</div>\n\n    indented\n\nend.",
)  # fmt: skip


async def test_a_text_that_grows_ends_as_the_whole_text_does(tabs: Tabs) -> None:
    async with serving(Relay) as server:
        page = await tabs.open(address(server, C))
        got = await page.get(f"""(async () => {{
            const {{ GrowingText, markdown }} = await import("./chat/markdown.js");
            const html = (element) => element.innerHTML.replace(/\\s+/g, " ");
            const wrong = [];
            for (const text of {json.dumps(GROWING)}) for (const step of [1, 2, 3, 7, 40]) {{
                const growing = new GrowingText(document.createElement("div"));
                for (let end = 0; end < text.length + step; end += step) {{
                    growing.update(text.slice(0, end));
                }}
                const whole = document.createElement("div");
                whole.append(markdown(text));
                if (html(whole) !== html(growing.element)) wrong.push([step, html(whole), html(growing.element)]);
            }}
            return wrong;
        }})()""")
        assert got == []


async def test_a_long_text_that_grows_has_the_blocks_of_the_whole_text(tabs: Tabs) -> None:
    long = "".join(f"{number} *of* them\n\n" for number in range(200))
    async with serving(Relay) as server:
        page = await tabs.open(address(server, C))
        got = await page.get(f"""(async () => {{
            const {{ GrowingText, markdown }} = await import("./chat/markdown.js");
            const growing = new GrowingText(document.createElement("div"));
            const flat = () => [...growing.element.querySelectorAll(":not(.blocks, em)")].map((one) => one.outerHTML);
            const whole = (text) => [...markdown(text).children].map((one) => one.outerHTML);
            const same = (text) => JSON.stringify(flat()) === JSON.stringify(whole(text));
            const text = {json.dumps(long)};
            for (let end = 0; end < text.length; end += 50) growing.update(text.slice(0, end));
            growing.update(text);
            const told = [same(text), growing.element.childElementCount < 50];
            growing.update("another *one*");
            return [...told, same("another *one*")];
        }})()""")
        assert got == [True, True, True]


async def test_what_is_written_leaves_what_was_written_alone(tabs: Tabs) -> None:
    """A new block styles none of the 300 above it anew: a count, not a time."""
    agent, pieces = story()
    async with serving(agent) as server:
        page = await tabs.open(address(server, "story/long"))
        await page.until(OPEN)
        await page.say("go")
        pieces.put_nowait("some *more* `of` it\n\n" * 300 + "end")
        await page.until(f"{DRAFT}?.endsWith('end')")
        await page.get("new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))")
        async with tabs.browser.traced("devtools.timeline") as trace:
            pieces.put_nowait("\n\n*new*")
            await page.until(f"{DRAFT}?.endsWith('new')")
            await page.get("new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))")
        told = [one["args"] for one in trace if one["name"] == "UpdateLayoutTree"]
        styled = sum(one["elementCount"] for one in told if one["beginData"]["frame"] == page.target)
        assert 0 < styled < 60  # a rule about siblings made it 900


async def test_what_the_reader_does_with_a_growing_block_stays(tabs: Tabs) -> None:
    agent, pieces = story()
    pre = "document.querySelector('.draft pre')"
    async with serving(agent) as server:
        page = await tabs.open(address(server, "story/block"))
        await page.until(OPEN)
        await page.say("go")
        pieces.put_nowait("```\nselected " + "wide " * 100 + "\n")
        await page.until(pre)
        await page.get(f"""(() => {{
            globalThis.block = {pre};
            block.focus();
            block.scrollLeft = 90;
            const text = block.querySelector("code").firstChild;
            getSelection().setBaseAndExtent(text, 0, text, 8);
        }})()""")
        pieces.put_nowait("more\n```\n\nand *text*")
        await page.until("document.querySelector('.draft em')?.textContent === 'text'")
        assert await page.get(f"""[
            {pre} === block, document.activeElement === block, block.scrollLeft, getSelection().toString(),
            block.textContent.trimEnd().endsWith("more"),
        ]""") == [True, True, 90, "selected", True]
        assert page.errors == []


async def test_parts_are_collapsed_and_ends_are_marked(tabs: Tabs) -> None:
    call = {"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "input": {"city": "Oslo"}}
    output = {"type": "json", "value": {"degrees": -3}}
    result = {"type": "tool-result", "toolCallId": "c1", "toolName": "weather", "output": output}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "assistant",
            "content": [{"type": "reasoning", "text": "let me see"}, {"type": "text", "text": "Well"}, call],
        },
        {"role": "tool", "content": [result]},
        {
            "role": "user",
            "content": [{"type": "image", "url": "https://example.org/x.png"}, {"type": "text", "text": "hm"}],
        },
        {"role": "assistant", "content": [{"type": "custom", "kind": "acme.card", "data": {"a": 1}}]},
    ]
    async with serving(Relay) as server:
        await fill(server, C, messages)
        page = await tabs.open(address(server, C))
        await page.until(f"{BODIES}.length === 5")
        assert await page.get("[...document.querySelectorAll('#rows summary')].map((one) => one.textContent)") == [
            "Reasoning", "Called weather", "Result of weather", "acme.card",
        ]  # fmt: skip
        assert await page.get("document.querySelectorAll('#rows details[open]').length") == 0
        await page.click(".tool summary")
        await page.until("document.querySelector('.tool pre')?.innerText.includes('\"degrees\": -3')")
        # A picture from elsewhere is not fetched: it is a link.
        assert await page.get("document.querySelectorAll('#rows img').length") == 0
        assert page.errors == []


async def test_reasoning_is_seen_while_it_grows(tabs: Tabs) -> None:
    _, pieces = story()

    class Thinker(Agent):
        async def on_message(self, row: StoredMessage) -> None:
            async with self.reply() as draft:
                await draft.reasoning("hm, ")
                await draft.reasoning("yes")
                await pieces.get()
                await draft.write("So.")
                await pieces.get()

    async with serving(Thinker) as server:
        page = await tabs.open(address(server, "thinker/x"))
        await page.until(OPEN)
        await page.say("go")
        await page.until("document.querySelector('.draft details[open] .plain')?.textContent === 'hm, yes'")
        pieces.put_nowait(None)
        await page.until("document.querySelector('.draft .markdown')?.textContent.trim() === 'So.'")
        pieces.put_nowait(None)
        await page.until("document.querySelector('#rows details:not([open]) summary')?.textContent === 'Reasoning'")
        assert [row["message"]["role"] for row in await history(server, "thinker/x")] == ["user", "assistant"]
        assert page.errors == []
