"""What is true after a crash: messages, their codec, the message log, the engine port and its engines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .backup import CheckReport, Progress, backup_data, check_data, restore_data
    from .codec import check_message, decode_message, encode_message, message_digest, parse_message
    from .contract import EngineContract
    from .convert.from_ai_sdk import from_ai_sdk
    from .convert.from_anthropic import from_anthropic
    from .convert.from_google import from_google
    from .convert.from_langchain import from_langchain
    from .convert.from_openai import from_openai
    from .convert.from_openai_responses import from_openai_responses
    from .convert.from_pydantic_ai import from_pydantic_ai
    from .convert.notes import Note
    from .convert.prompt import Prompt
    from .dialects import normalize, normalize_all
    from .engine import Batch, Committed, Due, Engine, Listing, NewRow, Partition, Told
    from .errors import (
        ClientIdConflict,
        CodecError,
        Conflict,
        CorruptRow,
        DataLocked,
        HookError,
        InvalidName,
        MissingResult,
        ParlatoryError,
        ReentrancyError,
        SchemaMismatch,
        StorageBusy,
        StorageClosed,
        StorageError,
        StorageFailed,
        StorageFull,
        TooLarge,
        UnknownMedia,
        kind_of,
    )
    from .instants import instant_of, instant_text, to_datetime
    from .log import LogStorage, MessageLog, OnAppend, new_row
    from .media import MEDIA_BYTES_MAX, Blob, Media, MediaRef, hash_of, inline_media
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
    from .statistics import Latency, StorageStatistics

__all__ = [
    "AGENT_NAME",
    "CONTROL",
    "MEDIA_BYTES_MAX",
    "AssistantMessage",
    "Batch",
    "Blob",
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
    "Latency",
    "Listing",
    "LogStorage",
    "Media",
    "MediaRef",
    "Message",
    "MessageLog",
    "MissingResult",
    "NewRow",
    "Note",
    "OnAppend",
    "ParlatoryError",
    "Partition",
    "Progress",
    "Prompt",
    "ReentrancyError",
    "Row",
    "SchemaMismatch",
    "StorageBusy",
    "StorageClosed",
    "StorageError",
    "StorageFailed",
    "StorageFull",
    "StorageStatistics",
    "StoredMessage",
    "SystemMessage",
    "Text",
    "Told",
    "TooLarge",
    "ToolCall",
    "ToolMessage",
    "ToolResult",
    "UnknownMedia",
    "UserMessage",
    "assistant_message",
    "backup_data",
    "check_data",
    "check_message",
    "check_name",
    "decode_message",
    "encode_message",
    "from_ai_sdk",
    "from_anthropic",
    "from_google",
    "from_langchain",
    "from_openai",
    "from_openai_responses",
    "from_pydantic_ai",
    "hash_of",
    "inline_media",
    "instant_of",
    "instant_text",
    "kind_of",
    "message_digest",
    "new_row",
    "normalize",
    "normalize_all",
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
    "MEDIA_BYTES_MAX": ".media",
    "AssistantMessage": ".messages",
    "Batch": ".engine",
    "Blob": ".media",
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
    "Latency": ".statistics",
    "Listing": ".engine",
    "LogStorage": ".log",
    "Media": ".media",
    "MediaRef": ".media",
    "Message": ".messages",
    "MessageLog": ".log",
    "MissingResult": ".errors",
    "NewRow": ".engine",
    "Note": ".convert.notes",
    "OnAppend": ".log",
    "ParlatoryError": ".errors",
    "Partition": ".engine",
    "Progress": ".backup",
    "Prompt": ".convert.prompt",
    "ReentrancyError": ".errors",
    "Row": ".rows",
    "SchemaMismatch": ".errors",
    "StorageBusy": ".errors",
    "StorageClosed": ".errors",
    "StorageError": ".errors",
    "StorageFailed": ".errors",
    "StorageFull": ".errors",
    "StorageStatistics": ".statistics",
    "StoredMessage": ".rows",
    "SystemMessage": ".messages",
    "Text": ".messages",
    "Told": ".engine",
    "TooLarge": ".errors",
    "ToolCall": ".messages",
    "ToolMessage": ".messages",
    "ToolResult": ".messages",
    "UnknownMedia": ".errors",
    "UserMessage": ".messages",
    "assistant_message": ".messages",
    "backup_data": ".backup",
    "check_data": ".backup",
    "check_message": ".codec",
    "check_name": ".names",
    "decode_message": ".codec",
    "encode_message": ".codec",
    "from_ai_sdk": ".convert.from_ai_sdk",
    "from_anthropic": ".convert.from_anthropic",
    "from_google": ".convert.from_google",
    "from_langchain": ".convert.from_langchain",
    "from_openai": ".convert.from_openai",
    "from_openai_responses": ".convert.from_openai_responses",
    "from_pydantic_ai": ".convert.from_pydantic_ai",
    "hash_of": ".media",
    "inline_media": ".media",
    "instant_of": ".instants",
    "instant_text": ".instants",
    "kind_of": ".errors",
    "message_digest": ".codec",
    "new_row": ".log",
    "normalize": ".dialects",
    "normalize_all": ".dialects",
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
