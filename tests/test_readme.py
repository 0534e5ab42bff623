"""The README's server and client, as they stand there."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S)


async def started(folder: Path, name: str, code: str) -> asyncio.subprocess.Process:
    path = folder / name
    await asyncio.to_thread(path.write_text, code)
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, "-u", str(path), cwd=folder, stdout=pipe, stderr=pipe)


async def free_port() -> int:
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    return port


async def accepting(port: int, process: asyncio.subprocess.Process) -> None:
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0)  # the loop goes round until the server listens
        else:
            writer.close()
            return
    assert process.stderr is not None
    raise AssertionError((await process.stderr.read()).decode())


def test_there_are_a_server_and_a_client() -> None:
    assert len(BLOCKS) == 2
    assert len(BLOCKS[0].splitlines()) <= 20, "a server in 20 lines"


@pytest.mark.timeout(60)
async def test_the_server_and_the_client_of_the_readme(tmp_path: Path) -> None:
    """The client says hi and is answered; when the server has been restarted it goes on with the next row."""
    port = await free_port()
    server_code, client_code = (block.replace("8000", str(port)) for block in BLOCKS)
    server = await started(tmp_path, "bot.py", server_code)
    await accepting(port, server)
    client = await started(tmp_path, "client.py", client_code)
    again = None
    try:
        assert client.stdout is not None
        async with asyncio.timeout(30):
            first = [(await client.stdout.readline()).decode().split(" ", 1) for _ in range(2)]
            assert [text for _, text in first] == ["hi\n", "echo: hi\n"]
            assert first[0][0].startswith("anonymous:") and first[1][0] == "agent"
            server.terminate()
            await server.communicate()
            server = await started(tmp_path, "bot.py", server_code)
            await accepting(port, server)
            again = await started(tmp_path, "client2.py", client_code)
            told = [(await client.stdout.readline()).decode().split(" ", 1)[1] for _ in range(2)]
            assert told == ["hi\n", "echo: hi\n"]
    finally:
        for process in (client, again, server):
            if process is not None and process.returncode is None:
                process.kill()
                await process.communicate()
