"""Responses over a WebSocket: one socket a thread, opened ahead of its request, and only what is new in each request."""

from patchyard.adapters.model.websocket.ahead import warm
from patchyard.adapters.model.websocket.attempt import SocketAttempt
from patchyard.adapters.model.websocket.thread import ThreadSocket, ThreadSockets

__all__ = ["SocketAttempt", "ThreadSocket", "ThreadSockets", "warm"]
