"""The model client: any server with OpenAI's Responses API, over SSE.

ResponsesClient   agent.ports.ModelClient        ModelTransport   the process's connections
ProviderConfig    one provider of one tenant     ModelPrice       what its models cost
"""

from patchyard.adapters.model.client import ResponsesClient
from patchyard.adapters.model.config import ModelPrice, ProviderConfig
from patchyard.adapters.model.errors import ClassifiedError
from patchyard.adapters.model.transport import ModelTransport

__all__ = ["ClassifiedError", "ModelPrice", "ModelTransport", "ProviderConfig", "ResponsesClient"]
