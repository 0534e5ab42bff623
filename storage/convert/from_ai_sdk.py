"""Messages of the AI SDK to ours: those for models, and those for a user interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import structs

from ..dialects import normalize
from ..errors import CodecError
from ..messages import (
    AssistantMessage,
    ErrorTextOutput,
    ExecutionDenied,
    JsonOutput,
    Message,
    Reasoning,
    SystemMessage,
    Text,
    TextOutput,
    ToolCall,
    ToolMessage,
    ToolOutput,
)
from .ingest import SOME_BYTES, Calls, Dict, assistant, custom, entries, label, medium, messages_of, plain, runs, source

__all__ = ["from_ai_sdk"]

_NAME = "ai-sdk"
# What a part of each kind has; a field beyond these is kept under `providerOptions`.
_FIELDS = {
    "text": {"text"},
    "image": {"image", "mediaType", "mimeType", "data", "url", "ref", "filename", "detail"},
    "file": {"data", "url", "ref", "mediaType", "mimeType", "filename"},
    "reasoning": {"text", "id", "signature", "data", "provider"},
    "tool-call": {"toolCallId", "toolName", "input", "invalid", "args", "providerExecuted"},
    "tool-result": {"toolCallId", "toolName", "output", "result", "isError"},
    "custom": {"kind", "data"},
}
_MESSAGE = {"role", "content", "id", "name", "metadata", "providerOptions"}
_OUTPUT = {"text", "image-data", "image-url", "file-data", "file-url", "media", "file", "image"}
_REFERENCES = {"file-reference", "image-file-reference", "file-id", "image-file-id"}
# Where each provider's package puts what our reasoning has fields for.
_REASONING = {
    "anthropic": {"signature": "signature", "redactedData": "data"},
    "openai": {"itemId": "id", "reasoningEncryptedContent": "data"},
    "google": {"thoughtSignature": "signature"},
}


def from_ai_sdk(obj: object) -> list[Message]:
    """Returns the messages of `ModelMessage`s, of `UIMessage`s, or of a result (`{"response": {"messages": ...}}`).

    A `UIMessage` of an assistant becomes a message per step, and one with the results of its tools behind each.

    Args:
        obj: the data, as the AI SDK writes it to JSON, or that JSON.

    Raises:
        CodecError: it is none of these, or not as their types say; the path says where.
    """
    data = plain(obj)
    if isinstance(data, Mapping):
        data = inner if isinstance(inner := data.get("response"), Mapping) else data
        data = data.get("messages", data)
    calls, found = Calls(), list[Message]()
    for path, fields in entries(data):
        found += _shown(fields, path, calls) if "parts" in fields else _model(fields, path)
    return found


# ---- for models ---------------------------------------------------------------------------------------------------


def _model(fields: Dict, path: str) -> Iterator[Message]:
    rest = {key: value for key, value in fields.items() if key not in _MESSAGE}
    fields = {key: value for key, value in fields.items() if key in _MESSAGE}
    if rest:
        fields["metadata"] = {**fields.get("metadata", {}), _NAME: rest}
    content = fields.get("content")
    if not isinstance(content, list):
        yield _normalized(fields, path)
        return
    user = fields.get("role") == "user"
    parts = [_part(_pictured(part) if user else part) for _, part in entries(content, f"{path}.content")]
    # Approvals stand among results; in a log only results do.
    tool = fields.get("role") == "tool"
    for results, run in runs(parts, lambda part: not tool or part.get("type") == "tool-result"):
        role = fields.get("role") if results else "assistant"
        yield _normalized({**fields, "role": role, "content": run}, path)
    if not parts:
        yield _normalized(fields, path)


def _normalized(fields: Dict, path: str) -> Message:
    try:
        return normalize(fields)
    except CodecError as error:
        raise CodecError(f"{path}{error.path[1:]}", error.reason) from error


def _part(part: Dict) -> Dict:
    kind = part.get("type")
    known = _FIELDS.get(kind) if isinstance(kind, str) else None
    if known is None or (kind == "custom" and "data" not in part):
        return {"type": "custom", "kind": str(part.get("kind", f"{_NAME}.{kind}")), "data": part}
    fields = {key: value for key, value in part.items() if key in known or key == "type"}
    given = part.get("providerOptions")
    held: Dict = dict(given) if isinstance(given, Mapping) else {}
    if kind == "reasoning":
        fields |= _sealed(fields, held)
    if kind == "tool-result" and isinstance(output := fields.get("output"), Mapping):
        fields["output"] = _output(output)
        if more := output.get("providerOptions"):
            held[_NAME] = {"output": more}
    if rest := {key: value for key, value in part.items() if key not in known | {"type", "providerOptions"}}:
        held[_NAME] = {**held.get(_NAME, {}), **rest}
    return {**fields, "providerOptions": held} if held else fields


def _pictured(part: Dict) -> Dict:
    """Returns a file as the picture that its type says it is."""
    kind, media_type = str(part.get("type")), str(part.get("mediaType"))
    if not kind.startswith("file") or not media_type.startswith("image/"):
        return part
    return {**part, "type": f"image{kind.removeprefix('file')}"}


def _sealed(fields: Dict, held: Dict) -> Dict:
    """Moves what our reasoning has fields for out of the provider's options."""
    for provider, names in _REASONING.items():
        given = held.get(provider)
        if isinstance(given, Mapping) and given.keys() & names.keys() and "provider" not in fields:
            rest = {key: value for key, value in given.items() if key not in names}
            held.pop(provider)
            held |= {provider: rest} if rest else {}
            return {"provider": provider, **{names[key]: value for key, value in given.items() if key in names}}
    return {}


def _output(output: Mapping[str, Any]) -> Dict:
    fields = {key: value for key, value in output.items() if key != "providerOptions"}
    value = fields.get("value")
    if fields.get("type") == "content" and isinstance(value, list):
        blocks = [_known(_pictured(block)) for _, block in entries(value, "$.output.value")]
        if any(block.get("type") not in _OUTPUT for block in blocks):
            return {"type": "json", "value": value}
        fields["value"] = blocks
    return fields


def _known(block: Dict) -> Dict:
    """Returns a file that only its provider has as the part that we have for it."""
    kind = str(block.get("type"))
    given = block.get("providerReference", block.get("fileId"))
    if kind not in _REFERENCES or not isinstance(given, Mapping | str):
        return block
    rest = {key: value for key, value in block.items() if key not in ("providerReference", "fileId")}
    ref = given if isinstance(given, Mapping) else {_NAME: given}
    shown = "image" if kind.startswith("image") else "file"
    return ({} if shown == "image" else {"mediaType": SOME_BYTES}) | rest | {"type": shown, "ref": ref}


# ---- for a user interface -----------------------------------------------------------------------------------------


def _shown(fields: Dict, path: str, calls: Calls) -> Iterator[Message]:
    about: Dict = {} if (id := label(fields.get("id"))) is None else {"id": id}
    if isinstance(metadata := fields.get("metadata"), Mapping):
        about["metadata"] = dict(metadata)
    parts = [part for _, part in entries(fields["parts"], f"{path}.parts")]
    match fields.get("role"):
        case "system":
            text = "".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")
            yield SystemMessage(content=text, **about)
        case "user":
            yield from messages_of((_shown_part(part, said=False) for part in parts), **about)
        case "assistant":
            for message in _steps(parts, calls):
                yield _about(message, about)
                about = {}
        case role:
            raise CodecError(f"{path}.role", f"{role!r} is no role of a UIMessage")


def _about(message: Message, about: Dict) -> Message:
    return structs.replace(message, **about) if about else message


def _steps(parts: list[Dict], calls: Calls) -> Iterator[AssistantMessage | ToolMessage]:
    steps: list[list[Dict]] = [[]]
    for part in parts:
        if part.get("type") == "step-start":
            steps.append([])
        else:
            steps[-1].append(part)
    first = True
    for step in steps:
        if not step and not (first and len(steps) == 1):
            continue
        first = False
        calls.begin()
        said, results = list[Any](), list[Any]()
        for part in step:
            if not _is_tool(part) or part.get("state") == "input-streaming":
                said.append(_shown_part(part, said=True))
                continue
            call = _call(part, calls)
            said.append(call)
            if (output := _final(part)) is not None:
                result = calls.result(call.tool_call_id, call.tool_name, output)
                (said if call.provider_executed else results).append(result)
        yield assistant(said)
        if results:
            yield ToolMessage(content=tuple(results))


def _is_tool(part: Dict) -> bool:
    return part.get("type") == "dynamic-tool" or str(part.get("type")).startswith("tool-")


def _call(part: Dict, calls: Calls) -> ToolCall:
    name = part.get("toolName") or str(part.get("type")).removeprefix("tool-")
    more: Dict = {"provider_executed": True} if part.get("providerExecuted") else {}
    if isinstance(given := part.get("callProviderMetadata"), Mapping) and given:
        more["provider_options"] = dict(given)
    return calls.call(part.get("toolCallId"), name, part.get("input", part.get("rawInput")), **more)


def _final(part: Dict) -> ToolOutput | None:
    match part.get("state"):
        case "output-available":
            value = part.get("output")
            return TextOutput(value=value) if isinstance(value, str) else JsonOutput(value=value)
        case "output-error":
            return ErrorTextOutput(value=str(part.get("errorText", "")))
        case "output-denied":
            approval = part.get("approval")
            reason = approval.get("reason") if isinstance(approval, Mapping) else None
            return ExecutionDenied(reason=reason if isinstance(reason, str) else None)
    return None


def _shown_part(part: Dict, *, said: bool) -> Any:
    kind = part.get("type")
    held: Dict = dict(given) if isinstance(given := part.get("providerMetadata"), Mapping) else {}
    fields = _sealed({}, held) if kind == "reasoning" else {}
    if held:
        fields["provider_options"] = held
    if kind == "text" and isinstance(text := part.get("text"), str):
        return Text(text=text, **fields)
    if kind == "reasoning" and said:
        return Reasoning(text=str(part.get("text", "")), **fields)
    if kind == "file" and (found := source(part.get("url"), _NAME, part.get("mediaType"))) is not None:
        if "filename" in part:
            fields["filename"] = part["filename"]
        return medium(found, **fields)
    return custom(_NAME, part)
