"""Opens a thread's socket ahead of its request."""

import httpx

from patchyard.adapters.model.body import head_of, join
from patchyard.adapters.model.classify import Classifier
from patchyard.adapters.model.config import ProviderConfig, ProviderLimits
from patchyard.adapters.model.websocket.messages import SocketDecoder, creation
from patchyard.adapters.model.websocket.socket import SocketRefused, WebSocket, open_socket
from patchyard.adapters.model.websocket.thread import ThreadSocket, ThreadSockets
from patchyard.adapters.model.websocket.warmup import Announcement
from patchyard.agent.ports import ModelRequest


def warm(
    thread: ThreadSocket,
    sockets: ThreadSockets,
    client: httpx.AsyncClient,
    config: ProviderConfig,
    headers: dict[str, str],
    request: ModelRequest,
) -> None:
    """Begin to open the socket of a request that comes later, and to tell what will not change until then. Never blocks."""

    async def connect() -> WebSocket:
        await sockets.make_room(thread)
        try:
            return await open_socket(client, config, headers)
        except SocketRefused as problem:
            if problem.status == 426:
                # The request need not ask again.
                thread.off = True
                sockets.unsupported(config.name)
            raise

    thread.warm(request.window_number, connect, _announcement(thread, config, headers, request))


def _announcement(
    thread: ThreadSocket, config: ProviderConfig, headers: dict[str, str], request: ModelRequest
) -> Announcement | None:
    """None: nothing is told in advance. Where requests are counted, nothing is asked without a permit."""
    if not thread.prewarms or config.limits != ProviderLimits():
        return None
    head = head_of(request, config.reasoning_summary, stream=False)
    message = join(creation(head, headers, generate=False), b"")
    if len(message) > config.max_request_bytes:
        return None
    return Announcement(message, head, SocketDecoder(Classifier(config), request.model))
