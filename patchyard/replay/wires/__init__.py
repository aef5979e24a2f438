"""The three ways to ask the replay model: SSE, WebSocket, Chat Completions."""

from patchyard.replay.wires.chat import ChatWire
from patchyard.replay.wires.sse import SseWire
from patchyard.replay.wires.websocket import serve_socket

__all__ = ["ChatWire", "SseWire", "serve_socket"]
