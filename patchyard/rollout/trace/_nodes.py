"""A span tree while it grows."""

from dataclasses import dataclass, field

from patchyard.protocol.items import (
    CommandExecutionItem,
    FileChangeItem,
    Item,
    McpToolCallItem,
)
from patchyard.protocol.rollout_lines import ModelRequestRecord

from .model import AttributeValue, TraceKind, TraceNode

_SHOWN = 200
"""Characters of a command in an attribute: a tree is read by people."""


@dataclass(eq=False)
class Node:
    """A span that may still change."""

    name: str
    kind: TraceKind
    start_ms: int
    end_ms: int | None = None
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    children: list["Node"] = field(default_factory=list)

    def child(self, name: str, kind: TraceKind, start_ms: int, end_ms: int | None = None, **attributes: object) -> "Node":
        """Add a span below this one."""
        node = Node(name, kind, start_ms, end_ms)
        node.set(**attributes)
        self.children.append(node)
        return node

    def event(self, name: str, at_ms: int, **attributes: object) -> "Node":
        """Add something that takes no time."""
        return self.child(name, "event", at_ms, at_ms, **attributes)

    def set(self, **attributes: object) -> None:
        """Add attributes; None and structures are left out."""
        for key, value in attributes.items():
            if isinstance(value, str | int | float | bool):
                self.attributes[key] = value

    def freeze(self) -> TraceNode:
        """The finished span, children in order of their start."""
        children = sorted(self.children, key=lambda node: node.start_ms)
        return TraceNode(
            self.name, self.kind, self.start_ms, self.end_ms, dict(self.attributes), tuple(child.freeze() for child in children)
        )


def add_request(parent: Node, record: ModelRequestRecord, at_ms: int) -> Node:
    """One attempt of a model request with its phases."""
    end = record.completed_at if record.completed_at is not None else at_ms
    node = parent.child(
        f"chat {record.model}",
        "model_request",
        record.queued_at,
        end,
        provider=record.provider,
        transport=record.transport,
        attempt=record.attempt,
        request_id=record.request_id,
        response_id=record.response_id,
        input_items=record.input_items,
        cost_usd=record.cost_usd,
    )
    if record.usage is not None:
        node.set(
            input_tokens=record.usage.input_tokens,
            cached_input_tokens=record.usage.cached_input_tokens,
            output_tokens=record.usage.output_tokens,
            reasoning_output_tokens=record.usage.reasoning_output_tokens,
        )
    if record.error is not None:
        node.set(error=record.error.code.value, message=record.error.message[:_SHOWN])
    times = (record.queued_at, record.sent_at, record.first_byte_at, record.first_token_at, record.completed_at)
    names = ("queued", "wait for first byte", "wait for first token", "stream")
    for name, start, stop in zip(names, times[:-1], times[1:], strict=True):
        if start is not None and stop is not None:
            node.child(name, "phase", start, stop)
    return node


def item_node(item: Item, start_ms: int) -> Node:
    """The span of an item."""
    match item:
        case CommandExecutionItem():
            node = Node("exec_command", "tool", start_ms)
            node.set(command=item.command[:_SHOWN], cwd=item.cwd)
        case FileChangeItem():
            node = Node("apply_patch", "tool", start_ms)
        case McpToolCallItem():
            node = Node(f"{item.server}.{item.tool}", "tool", start_ms)
        case _:
            node = Node(item.type, "item", start_ms)
    node.set(item_id=item.id)
    return node


def finish_item(node: Node, item: Item, end_ms: int) -> None:
    """Close the span of an item with what came out."""
    node.end_ms = end_ms
    node.set(status=getattr(item, "status", None), duration_ms=getattr(item, "duration_ms", None))
    match item:
        case CommandExecutionItem():
            node.set(exit_code=item.exit_code, process_id=item.process_id)
        case FileChangeItem():
            node.set(files=len(item.changes), error=item.error)
        case McpToolCallItem():
            node.set(error=item.error)
        case _:
            pass
