"""The same scripts over Chat Completions."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from patchyard.replay.connection import HttpConnection
from patchyard.replay.conversation import Exchange
from patchyard.replay.player import Frame
from patchyard.replay.wires.sse import SseWire

Json = dict[str, Any]


class ChatWire(SseWire):
    """Answers one request of Chat Completions: events become chunks, freeform calls become functions with one text."""

    def __init__(self, connection: HttpConnection, exchange: Exchange) -> None:
        super().__init__(connection, exchange)
        self._id = "chatcmpl"
        self._places: dict[str, int] = {}
        """Calls by item id."""
        self._custom: set[str] = set()

    def encode(self, frames: Iterable[Frame]) -> Iterable[tuple[bytes, float]]:
        """Bytes to send, each with the pause before it."""
        for frame in frames:
            if isinstance(frame.event, str):
                yield frame.sse(), frame.delay_s
                continue
            for number, chunk in enumerate(self._chunks(frame.event)):
                text = chunk if isinstance(chunk, str) else json.dumps(chunk, ensure_ascii=False)
                yield f"data: {text}\n\n".encode(), 0 if number else frame.delay_s

    def _chunks(self, event: Json) -> Iterator[Json | str]:
        match event.get("type"):
            case "response.created":
                self._id = str(event["response"]["id"])
                yield self._chunk({"role": "assistant", "content": ""})
            case "response.output_text.delta":
                yield self._chunk({"content": event["delta"]})
            case "response.reasoning_summary_text.delta":
                yield self._chunk({"reasoning_content": event["delta"]})
            case "response.output_item.added" if event["item"]["type"] in ("function_call", "custom_tool_call"):
                yield self._call(event["item"])
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                item = str(event["item_id"])
                text = json.dumps(event["delta"], ensure_ascii=False)[1:-1] if item in self._custom else event["delta"]
                yield self._arguments(item, text)
            case "response.output_item.done" if event["item"].get("id") in self._custom:
                yield self._arguments(str(event["item"]["id"]), '"}')
            case "response.completed":
                yield self._chunk({}, finish="tool_calls" if self._places else "stop")
                usage = event["response"].get("usage")
                if usage:
                    yield {**self._chunk({}), "choices": [], "usage": _usage(usage)}
                yield "[DONE]"
            case "response.incomplete":
                yield self._chunk({}, finish="length")
            case "response.failed":
                yield {"error": event["response"]["error"]}
            case _:
                return

    def _call(self, item: Json) -> Json:
        place = self._places[str(item["id"])] = len(self._places)
        opening = ""
        if item["type"] == "custom_tool_call":
            self._custom.add(str(item["id"]))
            opening = '{"input": "'
        function = {"name": item["name"], "arguments": opening}
        return self._chunk({"tool_calls": [{"index": place, "id": item["call_id"], "type": "function", "function": function}]})

    def _arguments(self, item_id: str, text: str) -> Json:
        return self._chunk({"tool_calls": [{"index": self._places[item_id], "function": {"arguments": text}}]})

    def _chunk(self, delta: Json, *, finish: str | None = None) -> Json:
        return {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": self._exchange.call.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }


def _usage(usage: Mapping[str, Any]) -> Json:
    return {
        "prompt_tokens": usage["input_tokens"],
        "prompt_tokens_details": usage["input_tokens_details"],
        "completion_tokens": usage["output_tokens"],
        "completion_tokens_details": usage["output_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }


def chat_items(body: Mapping[str, Any]) -> list[Json]:
    """Messages as the items that the rules are written for."""
    messages = body.get("messages")
    items: list[Json] = []
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        if message.get("role") == "tool":
            output = message.get("content")
            items.append({"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output})
            continue
        if message.get("content"):
            items.append({"type": "message", "role": message.get("role"), "content": message["content"]})
        for call in message.get("tool_calls") or ():
            function = call.get("function", {})
            items.append({"type": "function_call", "call_id": call.get("id"), **function})
    return items


def chat_problems(body: Mapping[str, Any] | None) -> list[str]:
    """What a Chat Completions API would refuse."""
    if body is None:
        return ["the body is not a JSON object"]
    problems = [] if isinstance(body.get("model"), str) and body["model"] else ["`model` must be a text"]
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        problems.append("`messages` must be a list of objects, and not empty")
    if body.get("stream") is not True:
        problems.append("`stream` must be true: this server only streams")
    return problems
