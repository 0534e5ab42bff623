"""The command line: `parlatory serve`, `chat`, `tail`, `log`, `check` ... Errors are one sentence and exit code 2."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from .. import __version__
from .words import counted

if TYPE_CHECKING:
    from .loading import Application

__all__ = ["main"]

EPILOG = "Each command has its own --help."
STANDARD_FDS = (0, 1, 2)
SWITCH_S = 0.00001
GARBAGE_OBJECTS = (10_000, 2, 2)  # a full collection comes as often as with Python's own (700, 10, 10)

logger = logging.getLogger("parlatory.server")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0, 1 if storage has failed, 2 for an error of the caller."""
    _fill_standard_fds()
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("websockets").setLevel(logging.WARNING)
    logging.getLogger("parlatory.server.websockets").setLevel(logging.WARNING)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not _is_expected(error):
            raise
        logger.debug("the command failed", exc_info=True)
        print(f"parlatory: {_sentence(error)}", file=sys.stderr)
        return 2


def _fill_standard_fds() -> None:
    """Opens those of stdin, stdout and stderr that are closed: a data file in their place would get what is printed."""
    for fd in STANDARD_FDS:
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _is_expected(error: Exception) -> bool:
    from ..storage import ParlatoryError
    from .loading import LoadError

    return isinstance(error, ParlatoryError | LoadError | OSError | ValueError)


def _sentence(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return " ".join(text.split()) or type(error).__name__


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Says what is wrong in one sentence, without the usage."""
        self.exit(2, f"parlatory: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="parlatory", description="Durable, live conversations.", epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"parlatory {__version__}")
    parser.add_argument(
        "--log-level", default="warning", choices=["debug", "info", "warning", "error"], help="what goes to stderr"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve the agents of a Python file")
    serve.add_argument("target", metavar="FILE.py[:Agent,...]", help="the file, and which of its agents; default all")
    serve.add_argument(
        "--data", type=_directory, required=True, metavar="DIR", help="the data directory; made if it is not there"
    )
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen on (default %(default)s)")
    serve.add_argument("--port", type=_port, default=8000, help="the port, 0 for a free one (default %(default)s)")
    serve.add_argument(
        "--idle-timeout", type=_positive_seconds, default=60.0, metavar="S",
        help="seconds after which an idle conversation is let go (default %(default)g)",
    )  # fmt: skip
    serve.add_argument(
        "--drain", type=_seconds, default=10.0, metavar="S",
        help="seconds over which sockets are closed at SIGTERM or Ctrl-C (default %(default)g)",
    )  # fmt: skip
    serve.add_argument(
        "--allow-anonymous", action="store_true", help="serve everybody beyond this machine, without any access rules"
    )
    serve.add_argument(
        "--origin", action="append", metavar="URL",
        help="an Origin whose pages may connect, such as https://chat.example; may repeat; needed with cookies",
    )  # fmt: skip
    serve.add_argument(
        "--no-web", dest="web", action="store_false", help="serve no pages: neither the chat page at / nor parlatory.js"
    )
    serve.set_defaults(run=_serve)

    chat = commands.add_parser("chat", help="talk in a conversation")
    _address(chat)
    chat.set_defaults(run=_chat)

    tail = commands.add_parser("tail", help="follow a conversation")
    _address(tail)
    tail.add_argument("-n", type=_count, default=10, metavar="N", help="begin with the last N rows (%(default)s)")
    tail.add_argument("--json", action="store_true", help="print JSON lines")
    tail.set_defaults(run=_tail)

    log = commands.add_parser("log", help="print a conversation from its data directory, or which there are")
    log.add_argument("data", metavar="DATA", help="the data directory")
    log.add_argument(
        "conversation", metavar="CONVERSATION", nargs="?", help="agent/name; without it the conversations are listed"
    )
    log.set_defaults(run=_log)
    _data_commands(commands)
    return parser


def _data_commands(commands: argparse._SubParsersAction[_Parser]) -> None:
    check = commands.add_parser("check", help="check every row of a data directory, beside a live server too")
    check.add_argument("data", metavar="DATA", help="the data directory")
    check.set_defaults(run=_check)

    backup = commands.add_parser("backup", help="copy a data directory, beside a live server too")
    backup.add_argument("data", metavar="DATA", help="the data directory")
    backup.add_argument("to", metavar="TO", help="the directory to make")
    backup.set_defaults(run=_backup)

    restore = commands.add_parser("restore", help="make a data directory from a backup")
    restore.add_argument("backup", metavar="BACKUP", help="what `parlatory backup` made")
    restore.add_argument("data", metavar="DATA", help="the data directory to make")
    restore.set_defaults(run=_restore)


def _address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the server, such as ws://127.0.0.1:8000/v1")
    parser.add_argument("conversation", metavar="CONVERSATION", help="agent/name")
    parser.add_argument(
        "--token", default=os.environ.get("PARLATORY_TOKEN"),
        help="the access token; better in the environment, as PARLATORY_TOKEN",
    )  # fmt: skip


def _directory(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it names no directory")
    return text


def _port(text: str) -> int:
    if not text.isdecimal() or int(text[:9]) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give 0 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def _positive_seconds(text: str) -> float:
    seconds = _seconds(text)
    if not seconds:
        raise argparse.ArgumentTypeError("0 seconds are too few")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is no count")
    return int(text)


def _serve(options: argparse.Namespace) -> int:
    from .loading import load_application

    # The loop and the thread that writes take turns within a step; with 5 ms, which is Python's own, that thread waits
    # in vain where the loop makes many system calls: each one starts its wait anew.
    sys.setswitchinterval(SWITCH_S)
    # What is alive for a moment, of some hundred messages and drafts, need not be looked through for garbage.
    gc.set_threshold(*GARBAGE_OBJECTS)
    return asyncio.run(_serve_until_stopped(load_application(options.target), options))


async def _serve_until_stopped(application: Application, options: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT, then drains; a second signal ends it at once."""
    from ..actors import Runtime
    from ..storage import open_engine
    from .app import serve

    engine = await open_engine(f"sqlite:///{options.data}")
    try:
        runtime = Runtime(engine, application.agents, idle_timeout_s=options.idle_timeout)
        serving = serve(
            runtime,
            host=options.host,
            port=options.port,
            authenticate=application.authenticate,
            authorize=application.authorize,
            operator=application.operator,
            allow_anonymous=options.allow_anonymous,
            # A client that is no browser could name any Origin: it may as well name none.
            origins=options.origin and [*options.origin, None],
            drain_s=options.drain,
            web=options.web,
        )
        async with runtime:
            server = await serving
            stopping = asyncio.Event()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, lambda: os._exit(1) if stopping.is_set() else stopping.set())
            names = [agent.wire_name for agent in application.agents]
            print(f"serving {', '.join(names)} ({counted(len(names), 'agent')})", file=sys.stderr)
            if server.page is not None:
                print(f"the chat page is {server.page}", file=sys.stderr)
            print(f"listening on {server.url}", file=sys.stderr, flush=True)
            await stopping.wait()
            print("stopping; once more to stop at once", file=sys.stderr, flush=True)
            await server.close()
    finally:
        await engine.close()
    code = 0 if engine.failed is None else 1
    stuck = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if stuck:  # user code that swallows its cancellation: the loop would wait for it for ever
        tasks = counted(len(stuck), "task")
        print(f"leaving without waiting for {tasks}; the log names what is stuck", file=sys.stderr, flush=True)
        os._exit(code)
    return code


def _chat(options: argparse.Namespace) -> int:
    from .cli_chat import chat

    return asyncio.run(chat(options.url, options.conversation, options.token))


def _tail(options: argparse.Namespace) -> int:
    from .cli_tail import tail

    return asyncio.run(tail(options.url, options.conversation, options.token, options.n, options.json))


def _log(options: argparse.Namespace) -> int:
    if options.conversation is None:
        return asyncio.run(_print_names(options.data))
    return asyncio.run(_print_log(options.data, options.conversation))


def _check(options: argparse.Namespace) -> int:
    from .cli_data import check

    return check(options.data)


def _backup(options: argparse.Namespace) -> int:
    from .cli_data import backup

    return backup(options.data, options.to)


def _restore(options: argparse.Namespace) -> int:
    from .cli_data import restore

    return restore(options.backup, options.data)


async def _print_log(data: str, conversation: str) -> int:
    from ..storage import check_name, open_engine

    check_name(conversation)
    engine = await open_engine(f"sqlite:///{data}", read_only=True)
    try:
        partition = await engine.partition(conversation)
        after = 0
        while rows := await partition.read(after=after, limit=500, max_bytes=4 << 20):
            after = rows[-1].seq
            if sys.stdout is not None:  # it was closed from the start
                for row in rows:
                    sys.stdout.buffer.write(row.json() + b"\n")
                sys.stdout.buffer.flush()
        if not after:
            print(f"parlatory: {conversation} has no rows in {data}", file=sys.stderr)
    finally:
        await engine.close()
    return 0 if after else 1


async def _print_names(data: str) -> int:
    from ..storage import instant_text, open_engine

    engine = await open_engine(f"sqlite:///{data}", read_only=True)
    cursor = ""
    try:
        while page := await engine.list(after=cursor):
            cursor = page[-1].cursor
            for one in page:
                print(f"{one.name}\t{counted(one.head, 'row')}\t{instant_text(one.at) if one.head else '-'}")
    finally:
        await engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
