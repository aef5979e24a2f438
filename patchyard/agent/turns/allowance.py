"""What a turn may spend: how much it has spent so far, and more of it from a person."""

from collections.abc import Sequence

from patchyard.agent.approvals import Answer
from patchyard.agent.budget import Spend
from patchyard.agent.context import tokens
from patchyard.agent.thread import Thread
from patchyard.protocol.budgets import BudgetRequest
from patchyard.protocol.ids import new_id
from patchyard.protocol.policies import ApprovalMode
from patchyard.protocol.rollout_lines import LinePayload
from patchyard.rollout import UnfinishedTurn

from . import records
from .state import TurnState


def spend_of(thread: Thread, turn: UnfinishedTurn | None) -> Spend:
    """The sums of a new turn, or of one that goes on, with the limits that people raised in it."""
    budgets, now_ms = thread.config.spec.budgets, thread.ports.clock.now_ms()
    if turn is None:
        return Spend(budgets, now_ms)
    told = records.was_told_to_wrap_up(thread.journal.world, turn.turn_id)
    usage, cost = turn.usage, turn.cost_usd
    agents = thread.agents.spent_in(turn.turn_id)
    for child in agents:
        usage, cost = tokens.add(usage, child.usage), tokens.add_cost(cost, child.cost_usd)
    return Spend(
        budgets.raised(turn.limits),
        # As if it had begun just so long ago as it was worked on: time without a worker is nobody's work.
        now_ms - turn.active_ms,
        model_requests=turn.model_requests + sum(child.model_requests for child in agents),
        tool_calls=turn.tool_calls + sum(child.tool_calls for child in agents),
        usage=usage,
        cost_usd=cost,
        warned=told,
        wrapped_up=told,
    )


class MoreBudget:
    """Asks a person for more budget, where one can be asked (decision 0090)."""

    def __init__(self, state: TurnState, *, declined: bool) -> None:
        self._state = state
        self._thread = state.thread
        self._clock = state.thread.ports.clock
        self._declined = declined
        self.granted = False
        """A person gave more in this segment. It was asked for between two steps, so what came meanwhile comes next."""

    @property
    def asks(self) -> bool:
        """Whether a budget that is used up is asked for. What a person started is asked about, not what an agent did."""
        config = self._thread.config
        if self._declined or self._state.kind != "regular" or config.agent_depth > 0:
            return False
        wanted = self._state.spend.budgets.when_spent
        if wanted is None:
            return self._thread.active_settings.approval is not ApprovalMode.NEVER
        return wanted == "ask"

    @property
    def waits(self) -> bool:
        """Whether an earlier segment has asked and nobody has answered."""
        return self._thread.questions.about_budget is not None

    async def more(self) -> bool:
        """True: the limits were raised, the turn goes on. False: it is over. ParkTurn after the hold time, StopTurn."""
        spend, began = self._state.spend, self._clock.now_ms()
        request = self._thread.questions.about_budget
        if request is None and not self.asks:
            return False
        try:
            answer = await self._thread.questions.ask(request or self._request(), told=self._told)
        finally:
            spend.did_not_work(self._clock.now_ms() - began)
        if answer.budgets is None:
            self._declined = True
            return False
        spend.raise_limits(answer.budgets)
        self.granted = True
        return True

    def _request(self) -> BudgetRequest:
        now_ms, spend = self._clock.now_ms(), self._state.spend
        first, *_ = spend.spent(now_ms)
        return BudgetRequest(
            request_id=new_id(now_ms),
            budget=first.budget,
            used=first.used,
            limit=first.limit,
            proposed=spend.proposal(self._thread.config.spec.budgets, now_ms),
            meters=tuple(spend.meters(now_ms)),
        )

    def _told(self, answer: Answer) -> Sequence[LinePayload]:
        """What the model reads of it; nothing where it has not read its task yet."""
        if answer.budgets is None or not self._state.input_recorded:
            return ()
        return records.more_budget_note(answer.budgets)
