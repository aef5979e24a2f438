"""What is said over a socket: `response.create`, and events and error frames that come back."""

import json
from collections.abc import Mapping
from typing import Any

from patchyard.adapters.model.body import dump
from patchyard.adapters.model.classify import Classifier
from patchyard.adapters.model.decode import Decoder
from patchyard.adapters.model.errors import SocketFault

_STALE_CODES = frozenset({"previous_response_not_found", "websocket_connection_limit_reached"})
"""The server forgot what we continue, or the socket reached its greatest age."""
_METADATA = ("x-client-request-id", "x-patchyard-window", "x-patchyard-request-kind", "traceparent", "tracestate")


def creation(head: bytes, headers: Mapping[str, str], **fields: Any) -> bytes:
    """`response.create` with all but its input. What changes with each request can't stand in the upgrade's headers: it goes here."""
    metadata = {name: headers[name] for name in _METADATA if name in headers}
    return b'{"type":"response.create",' + head[1:-1] + b"," + dump({**fields, "client_metadata": metadata})[1:]


class SocketDecoder(Decoder):
    """The same events as over SSE; errors come as frames with an HTTP status."""

    def __init__(self, classifier: Classifier, model: str) -> None:
        super().__init__(classifier)
        self._model = model

    def _raise_if_failed(self, kind: str, data: Mapping[str, Any]) -> None:
        status = data.get("status_code", data.get("status"))
        if kind != "error" or not isinstance(status, int):
            super()._raise_if_failed(kind, data)
            return
        error, headers = data.get("error"), data.get("headers")
        if isinstance(error, Mapping) and error.get("code") in _STALE_CODES:
            raise self._classifier.stream_broken(str(error["code"])).blame(SocketFault.STALE)
        told = {str(name).lower(): str(value) for name, value in headers.items()} if isinstance(headers, Mapping) else {}
        problem = self._classifier.status(status, told, json.dumps({"error": error}).encode(), model=self._model)
        if self.response_id is not None:
            # The response had begun: what was seen of it is the stream layer's business.
            problem.request_retry = False
        raise problem
