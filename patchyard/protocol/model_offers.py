"""Which provider serves a model: the one rule, for those who accept tasks and for those who ask the model."""

import difflib
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ModelOffer:
    """What one provider serves to whom."""

    provider: str
    models: tuple[str, ...] = ()
    """Names, or patterns such as `gpt-*`. Empty: whatever is asked for."""
    tenants: tuple[str, ...] = ()
    """Empty: all."""

    def lists(self, model: str) -> bool:
        """By name or by pattern."""
        return any(fnmatch.fnmatchcase(model, pattern) for pattern in self.models)


@dataclass(frozen=True)
class Served:
    """Where a model is."""

    provider: str
    model: str
    """Its name there."""


def find_offer(offers: Sequence[ModelOffer], model: str, tenant_id: str) -> Served | None:
    """Who serves a model to a tenant; None: nobody.

    `provider/model` names it; else the first that lists the model, the first with a pattern for it, the first that takes any.
    """
    mine = offers_for(offers, tenant_id)
    prefix, slash, rest = model.partition("/")
    for one in mine:
        if slash and rest and one.provider == prefix and (not one.models or one.lists(rest)):
            return Served(one.provider, rest)
    by_name = (one for one in mine if model in one.models)
    by_pattern = (one for one in mine if one.lists(model))
    takes_any = (one for one in mine if not one.models)
    found = next(by_name, None) or next(by_pattern, None) or next(takes_any, None)
    return None if found is None else Served(found.provider, model)


def offers_for(offers: Sequence[ModelOffer], tenant_id: str) -> Sequence[ModelOffer]:
    """Those that a tenant may use."""
    return [one for one in offers if not one.tenants or tenant_id in one.tenants]


def nearest_models(offers: Sequence[ModelOffer], model: str, tenant_id: str) -> Sequence[str]:
    """All names and patterns that are served to a tenant, those first that look most like this one."""
    mine = offers_for(offers, tenant_id)
    prefix, slash, rest = model.partition("/")
    bare = rest if slash and any(one.provider == prefix for one in mine) else model
    names = dict.fromkeys(name for one in mine for name in one.models)
    return sorted(names, key=lambda name: -difflib.SequenceMatcher(None, bare.lower(), name.lower()).ratio())
