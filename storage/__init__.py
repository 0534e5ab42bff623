"""What is true after a crash: messages, their codec, the message log, the engine port and its engines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .backup import CheckReport, Progress, backup_data, check_data, restore_data
    from .codec import check_message, decode_message, encode_message, message_digest, parse_message
    from .contract import EngineContract
    from .dialects import normalize
    from .engine import Batch, Committed, Due, Engine, Listing, NewRow, Partition, Told
    from .errors import (
        ClientIdConflict,
        CodecError,
        Conflict,
        CorruptRow,
        DataLocked,
        HookError,
        InvalidName,
        ParlatoryError,
        ReentrancyError,
        SchemaMismatch,
        StorageBusy,
        StorageClosed,
        StorageError,
        StorageFailed,
        StorageFull,
        TooLarge,
        kind_of,
    )
    from .instants import instant_of, instant_text, to_datetime
    from .log import LogStorage, MessageLog, OnAppend, new_row
    from .messages import (
        AssistantMessage,
        Custom,
        File,
        Image,
        Message,
        SystemMessage,
        Text,
        ToolCall,
        ToolMessage,
        ToolResult,
        UserMessage,
        assistant_message,
        system_message,
        tool_message,
        user_message,
    )
    from .names import AGENT_NAME, CONTROL, check_name, split_name
    from .opening import open_engine
    from .rows import Row, StoredMessage

__all__ = [
    "AGENT_NAME",
    "CONTROL",
    "AssistantMessage",
    "Batch",
    "CheckReport",
    "ClientIdConflict",
    "CodecError",
    "Committed",
    "Conflict",
    "CorruptRow",
    "Custom",
    "DataLocked",
    "Due",
    "Engine",
    "EngineContract",
    "File",
    "HookError",
    "Image",
    "InvalidName",
    "Listing",
    "LogStorage",
    "Message",
    "MessageLog",
    "NewRow",
    "OnAppend",
    "ParlatoryError",
    "Partition",
    "Progress",
    "ReentrancyError",
    "Row",
    "SchemaMismatch",
    "StorageBusy",
    "StorageClosed",
    "StorageError",
    "StorageFailed",
    "StorageFull",
    "StoredMessage",
    "SystemMessage",
    "Text",
    "Told",
    "TooLarge",
    "ToolCall",
    "ToolMessage",
    "ToolResult",
    "UserMessage",
    "assistant_message",
    "backup_data",
    "check_data",
    "check_message",
    "check_name",
    "decode_message",
    "encode_message",
    "instant_of",
    "instant_text",
    "kind_of",
    "message_digest",
    "new_row",
    "normalize",
    "open_engine",
    "parse_message",
    "restore_data",
    "split_name",
    "system_message",
    "to_datetime",
    "tool_message",
    "user_message",
]

_HOME = {
    "AGENT_NAME": ".names",
    "CONTROL": ".names",
    "AssistantMessage": ".messages",
    "Batch": ".engine",
    "CheckReport": ".backup",
    "ClientIdConflict": ".errors",
    "CodecError": ".errors",
    "Committed": ".engine",
    "Conflict": ".errors",
    "CorruptRow": ".errors",
    "Custom": ".messages",
    "DataLocked": ".errors",
    "Due": ".engine",
    "Engine": ".engine",
    "EngineContract": ".contract",
    "File": ".messages",
    "HookError": ".errors",
    "Image": ".messages",
    "InvalidName": ".errors",
    "Listing": ".engine",
    "LogStorage": ".log",
    "Message": ".messages",
    "MessageLog": ".log",
    "NewRow": ".engine",
    "OnAppend": ".log",
    "ParlatoryError": ".errors",
    "Partition": ".engine",
    "Progress": ".backup",
    "ReentrancyError": ".errors",
    "Row": ".rows",
    "SchemaMismatch": ".errors",
    "StorageBusy": ".errors",
    "StorageClosed": ".errors",
    "StorageError": ".errors",
    "StorageFailed": ".errors",
    "StorageFull": ".errors",
    "StoredMessage": ".rows",
    "SystemMessage": ".messages",
    "Text": ".messages",
    "Told": ".engine",
    "TooLarge": ".errors",
    "ToolCall": ".messages",
    "ToolMessage": ".messages",
    "ToolResult": ".messages",
    "UserMessage": ".messages",
    "assistant_message": ".messages",
    "backup_data": ".backup",
    "check_data": ".backup",
    "check_message": ".codec",
    "check_name": ".names",
    "decode_message": ".codec",
    "encode_message": ".codec",
    "instant_of": ".instants",
    "instant_text": ".instants",
    "kind_of": ".errors",
    "message_digest": ".codec",
    "new_row": ".log",
    "normalize": ".dialects",
    "open_engine": ".opening",
    "parse_message": ".codec",
    "restore_data": ".backup",
    "split_name": ".names",
    "system_message": ".messages",
    "to_datetime": ".instants",
    "tool_message": ".messages",
    "user_message": ".messages",
}

if not TYPE_CHECKING:  # a type checker that saw it would accept any name

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name], __name__), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
