"""How a turn's budgets are shared with its agents, so that all of them together never get more than there is.

An agent is given a third of what is neither used nor set aside. That much is set aside until its turn ends; then what it
did not use is free again. Wall time is not shared: agents work at the same time as the turn.
"""

from collections.abc import Iterable, Mapping

from patchyard.agent.context import tokens
from patchyard.agent.errors import ToolError
from patchyard.protocol.policies import Budgets
from patchyard.protocol.rollout_lines import Allowance, ChildAgent

_PARTS = 3
_SHARED = {"model_requests": "model requests", "tool_calls": "tool calls", "tokens": "tokens", "cost_usd": "money"}
_LEAST = {"model_requests": 1, "tool_calls": 1, "tokens": 1, "cost_usd": 1e-6}
"""Smallest share, and what must stay for the turn itself."""


def set_aside(children: Iterable[ChildAgent]) -> dict[str, float]:
    """By the budget's name: what these agents may still use."""
    sums: dict[str, float] = {}
    for child in children:
        if child.up_to is None or child.closed:
            continue
        used = _used(child)
        for name in _SHARED:
            if (limit := getattr(child.up_to, name)) is not None:
                sums[name] = sums.get(name, 0) + max(0, limit - used[name])
    return sums


def share_of(left: Budgets, aside: Mapping[str, float]) -> Budgets:
    """What a new agent's turns may use. ToolError when there is not enough for it."""
    given: dict[str, float] = {}
    for name, words in _SHARED.items():
        if (rest := getattr(left, name)) is None:
            continue
        free = rest - aside.get(name, 0)
        if free < 2 * _LEAST[name]:
            raise ToolError(
                f"The turn's budget ({words}) is too far used for an agent. Do it yourself, or close an agent first."
            )
        given[name] = max(_LEAST[name], free / _PARTS if name == "cost_usd" else free // _PARTS)
    return left.model_copy(update=given)


def another_turn(child: ChildAgent, left: Budgets, aside: Mapping[str, float]) -> Allowance:
    """How far an agent may go that begins another turn. ToolError when its share is not free. `aside`: without its own."""
    share, used = child.share or Allowance(), _used(child)
    up_to: dict[str, float] = {}
    for name, words in _SHARED.items():
        part, rest = getattr(share, name), getattr(left, name)
        if part is None:
            continue
        if rest is not None and rest - aside.get(name, 0) - part < _LEAST[name]:
            raise ToolError(f"The turn's budget ({words}) is too far used to give this agent more to do. Do it yourself.")
        up_to[name] = used[name] + part
    return Allowance.model_validate(up_to)


def allowance(budgets: Budgets) -> Allowance:
    """The shared part of an agent's budgets."""
    return Allowance.model_validate({name: getattr(budgets, name) for name in _SHARED})


def _used(child: ChildAgent) -> Mapping[str, float]:
    return {
        "model_requests": child.model_requests,
        "tool_calls": child.tool_calls,
        "tokens": tokens.total(child.usage),
        "cost_usd": child.cost_usd or 0.0,
    }
