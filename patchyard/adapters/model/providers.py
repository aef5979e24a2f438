"""All providers of an installation: which one serves a model, and a model client that asks the right one."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from patchyard.adapters.model.client import ResponsesClient
from patchyard.adapters.model.config import ProviderConfig
from patchyard.adapters.model.connections.transport import ModelTransport
from patchyard.adapters.model.errors import ClassifiedError
from patchyard.adapters.model.limits import Gate
from patchyard.agent.ports import ModelEvent, ModelRequest
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.model_offers import ModelOffer, find_offer, offers_for
from patchyard.protocol.ops import TraceContext


@dataclass(frozen=True)
class ModelRoute:
    """Where a model is."""

    provider: ProviderConfig
    model: str
    """Its name there."""


class UnknownModel(ClassifiedError):
    """No provider serves this model for this tenant."""


class ProviderBook:
    """The providers in the order in which they are asked."""

    def __init__(self, providers: Sequence[ProviderConfig]) -> None:
        """ValueError: two have the same name."""
        names = [provider.name for provider in providers]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"two providers are called {', '.join(sorted(twice))}; give each a name of its own")
        self.providers = tuple(providers)
        self._by_name = {one.name: one for one in self.providers}

    def route(self, model: str, tenant_id: str) -> ModelRoute:
        """The provider of a model, and the model's name there; see `find_offer`. UnknownModel says what there is."""
        offers = [ModelOffer(one.name, one.models, one.tenants) for one in self.providers]
        served = find_offer(offers, model, tenant_id)
        if served is None:
            raise UnknownModel(_unknown(model, offers_for(offers, tenant_id)))
        return ModelRoute(self._by_name[served.provider], served.model)

    def secrets(self) -> tuple[str, ...]:
        """All secret values, to be kept out of every text."""
        return tuple({value for provider in self.providers for value in provider.secret_values()})


def _unknown(model: str, mine: Sequence[ModelOffer]) -> ErrorInfo:
    there = "; ".join(f"{one.provider}: {', '.join(one.models) or 'any'}" for one in mine) or "no provider at all"
    message = (
        f"no provider serves the model {model} here (there is {there}). Use one of these, or add the model to `models` of "
        "a table [providers.<name>] in patchyard.toml"
    )
    return ErrorInfo.of(ErrorCode.MODEL_BAD_REQUEST, message, model=model)


class ModelRouter:
    """agent.ports.ModelClient of one thread: each request goes to the provider that serves its model."""

    def __init__(
        self,
        book: ProviderBook,
        transport: ModelTransport,
        *,
        tenant_id: str,
        trace: Callable[[], TraceContext | None],
        gate: Gate | None = None,
    ) -> None:
        self._book, self._transport, self._tenant_id, self._trace, self._gate = book, transport, tenant_id, trace, gate
        self._clients: dict[str, ResponsesClient] = {}

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See ModelClient. UnknownModel, also when the model was changed while the thread ran."""
        route = self._book.route(request.model, self._tenant_id)
        async with aclosing(self._client(route).stream(replace(request, model=route.model))) as events:
            async for event in events:
                yield event

    def prewarm(self, request: ModelRequest) -> None:
        """See ModelClient."""
        try:
            route = self._book.route(request.model, self._tenant_id)
        except UnknownModel:
            # The request says so.
            return
        self._client(route).prewarm(replace(request, model=route.model))

    def _client(self, route: ModelRoute) -> ResponsesClient:
        name = route.provider.name
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = ResponsesClient(route.provider, self._transport, trace=self._trace, gate=self._gate)
        return client
