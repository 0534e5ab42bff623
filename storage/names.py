"""Conversation names: `<agent>/<name>`, checked once at every entrance and never used as a path."""

from __future__ import annotations

import re
import unicodedata

from .errors import InvalidName

__all__ = ["AGENT_NAME", "CONTROL", "NAME_MAX_BYTES", "check_name", "split_name"]

AGENT_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
NAME_MAX_BYTES = 512


def split_name(conversation: str) -> tuple[str, str]:
    """Returns the agent and the name of a well-formed conversation (PROTOCOL section 1).

    Raises:
        InvalidName: the string is none; the error says which rule it breaks.
    """
    if not isinstance(conversation, str):
        raise InvalidName(conversation, "it is a string")
    agent, slash, name = conversation.partition("/")
    if not slash:
        raise InvalidName(conversation, "it has the form <agent>/<name>")
    if not AGENT_NAME.fullmatch(agent):
        raise InvalidName(conversation, "the agent is 1 to 32 of a-z, 0-9 and -, a letter first")
    if name.isascii():
        size = len(name)
    else:
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            raise InvalidName(conversation, "it holds a lone surrogate") from None
        if not unicodedata.is_normalized("NFC", name):
            raise InvalidName(conversation, "it is not in Unicode normal form NFC")
    if not 1 <= size <= NAME_MAX_BYTES:
        raise InvalidName(conversation, f"the name has 1 to {NAME_MAX_BYTES} bytes of UTF-8")
    if CONTROL.search(name):
        raise InvalidName(conversation, "it holds a control character")
    return agent, name


def check_name(conversation: str) -> str:
    """Returns the conversation as it came, if it is well formed; raises InvalidName if not."""
    split_name(conversation)
    return conversation
