"""The model client: any server with the Responses API (WebSocket, SSE) or Chat Completions.

ResponsesClient   agent.ports.ModelClient        ModelTransport   the process's connections
ProviderConfig    one provider of one tenant     ModelPrice       what its models cost
"""

from patchyard.adapters.model.client import ResponsesClient
from patchyard.adapters.model.config import ModelPrice, ProviderConfig
from patchyard.adapters.model.connections.transport import ModelTransport
from patchyard.adapters.model.errors import ClassifiedError

__all__ = ["ClassifiedError", "ModelPrice", "ModelTransport", "ProviderConfig", "ResponsesClient"]
