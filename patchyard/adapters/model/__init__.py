"""The model client: any server with the Responses API (WebSocket, SSE) or Chat Completions.

ModelRouter       agent.ports.ModelClient over all providers     ProviderBook     which provider serves a model
ResponsesClient   the same for one provider                     ModelTransport   the process's connections
ProviderConfig    one provider of one tenant                    Gate             limits that are shared by others
"""

from patchyard.adapters.model.client import ResponsesClient
from patchyard.adapters.model.config import ModelPrice, ProviderConfig, ProviderLimits
from patchyard.adapters.model.connections.transport import ModelTransport
from patchyard.adapters.model.errors import ClassifiedError
from patchyard.adapters.model.limits import Gate
from patchyard.adapters.model.providers import ModelRoute, ModelRouter, ProviderBook, UnknownModel

__all__ = [
    "ClassifiedError",
    "Gate",
    "ModelPrice",
    "ModelRoute",
    "ModelRouter",
    "ModelTransport",
    "ProviderBook",
    "ProviderConfig",
    "ProviderLimits",
    "ResponsesClient",
    "UnknownModel",
]
