"""Chat Completions for servers that speak only that: the same ModelClient, other bodies and events."""

from patchyard.adapters.model.chat.body import chat_body
from patchyard.adapters.model.chat.decode import ChatDecoder

__all__ = ["ChatDecoder", "chat_body"]
