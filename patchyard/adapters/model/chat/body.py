"""A model request as Chat Completions takes it.

What that API lacks: reasoning items are left out; a freeform tool becomes a function with one text argument; a developer
message is a system message at the start and a user message later, since many chat templates take `system` only there.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

from patchyard.agent.ports import ModelRequest
from patchyard.protocol.model_items import (
    CompactionItem,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Message,
    ModelItem,
    OpaqueItem,
    OutputText,
    Reasoning,
    Refusal,
)

INPUT = "input"
"""The one argument of a freeform tool."""
Json = dict[str, Any]


def chat_body(request: ModelRequest) -> bytes:
    """The JSON body of a request."""
    fields: Json = {
        "model": request.model,
        "messages": list(_messages(request.instructions, request.input)),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    tools = [tool for spec in request.tools if (tool := _tool(spec)) is not None]
    if tools:
        fields |= {"tools": tools, "tool_choice": "auto", "parallel_tool_calls": request.parallel_tool_calls}
    if request.effort is not None:
        fields["reasoning_effort"] = request.effort
    if request.output_schema is not None:
        schema = {"name": "final_answer", "strict": True, "schema": dict(request.output_schema)}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def freeform_names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Names of the tools whose calls come back as functions with one text argument."""
    return frozenset(str(spec.get("name")) for spec in tools if spec.get("type") == "custom")


def _tool(spec: Mapping[str, Any]) -> Json | None:
    """None for tools that the provider itself would run: this API has none."""
    kind = spec.get("type")
    if kind == "function":
        function = {key: spec[key] for key in ("name", "description", "parameters", "strict") if spec.get(key) is not None}
        return {"type": "function", "function": function}
    if kind != "custom":
        return None
    description = str(spec.get("description", ""))
    form = spec.get("format")
    if isinstance(form, Mapping) and form.get("definition"):
        description = f"{description}\n\nThe text must follow this {form.get('syntax', '')} grammar:\n{form['definition']}"
    parameters = {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": "The whole text, not wrapped in anything."}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": spec.get("name"), "description": description, "parameters": parameters}}


def _messages(instructions: str, items: Sequence[ModelItem]) -> Iterator[Json]:
    """Messages in the order of the items. What one step of the model said and called is one message, as the API wants it."""
    if instructions:
        yield {"role": "system", "content": instructions}
    beginning = True
    said: Json | None = None
    images: list[InputImage] = []
    for item in items:
        step = _of_model(item)
        if step is not None:
            if said is not None and "content" in step and said.get("tool_calls"):
                yield said
                said = None
            said = step if said is None else _joined(said, step)
            continue
        if said is not None:
            yield said
            said = None
        if images and not isinstance(item, FunctionCallOutput | CustomToolCallOutput):
            yield _shown(images)
            images = []
        match item:
            case Message():
                if item.role == "user":
                    beginning = False
                yield {"role": "system" if item.role != "user" and beginning else "user", "content": _content(item.content)}
            case FunctionCallOutput() | CustomToolCallOutput():
                yield {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
                if not isinstance(item.output, str):
                    images += [part for part in item.output if isinstance(part, InputImage)]
            case Reasoning() | CompactionItem() | OpaqueItem() | FunctionCall() | CustomToolCall():
                continue
            case _:
                assert_never(item)
    if said is not None:
        yield said
    if images:
        yield _shown(images)


def _of_model(item: ModelItem) -> Json | None:
    """What the model itself said or called; None for anything else."""
    match item:
        case Message(role="assistant"):
            return {"role": "assistant", "content": _text(item.content)}
        case FunctionCall():
            return _calling(item.call_id, item.name, item.arguments)
        case CustomToolCall():
            return _calling(item.call_id, item.name, json.dumps({INPUT: item.input}, ensure_ascii=False))
        case _:
            return None


def _calling(call_id: str, name: str, arguments: str) -> Json:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call]}


def _joined(said: Json, more: Json) -> Json:
    content = "\n\n".join(text for text in (said.get("content"), more.get("content")) if text)
    calls = [*said.get("tool_calls", ()), *more.get("tool_calls", ())]
    return {"role": "assistant", **({"content": content} if content else {}), **({"tool_calls": calls} if calls else {})}


def _text(content: str | Sequence[Any]) -> str:
    """All texts of a content; images are named where they stood."""
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        match part:
            case InputText() | OutputText():
                parts.append(part.text)
            case Refusal():
                parts.append(part.refusal)
            case InputImage():
                parts.append("[image: see the next message]")
            case _:
                continue
    return "\n".join(parts)


def _content(content: Sequence[Any]) -> str | list[Json]:
    if not any(isinstance(part, InputImage) for part in content):
        return _text(content)
    return [_image(part) if isinstance(part, InputImage) else {"type": "text", "text": _text([part])} for part in content]


def _image(image: InputImage) -> Json:
    detail = {"detail": image.detail} if image.detail else {}
    return {"type": "image_url", "image_url": {"url": image.image_url, **detail}}


def _shown(images: Sequence[InputImage]) -> Json:
    """Images of tool outputs: a `tool` message can hold only text."""
    parts: list[Json] = [{"type": "text", "text": "Images of the tool outputs above:"}]
    return {"role": "user", "content": [*parts, *map(_image, images)]}
