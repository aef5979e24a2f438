"""update_plan: shows people what the agent is about to do."""

from collections.abc import Mapping
from typing import Any, Literal

from patchyard.agent.prompts import tool_description
from patchyard.agent.thread import Thread
from patchyard.protocol.events import ItemCompleted, ItemStarted, PlanUpdate
from patchyard.protocol.items import PlanItem, PlanStep

from .calls import Arguments, ToolCall, function_spec, parse_arguments

_STATUSES: tuple[Literal["pending", "in_progress", "completed"], ...] = ("pending", "in_progress", "completed")


class _Step(Arguments):
    step: str
    status: Literal["pending", "in_progress", "completed"]


class PlanArguments(Arguments):
    """Arguments of update_plan."""

    explanation: str | None = None
    plan: tuple[_Step, ...]


class UpdatePlan:
    """See the module."""

    name = "update_plan"
    kind: Literal["function", "custom"] = "function"
    parallel = True

    def __init__(self, thread: Thread) -> None:
        self._thread = thread

    def spec(self) -> Mapping[str, Any]:
        """See Tool."""
        step = {
            "type": "object",
            "properties": {"step": {"type": "string"}, "status": {"type": "string", "enum": list(_STATUSES)}},
            "required": ["step", "status"],
            "additionalProperties": False,
        }
        return function_spec(
            self.name,
            tool_description(self.name),
            {
                "explanation": {"type": "string", "description": "Why the plan changed."},
                "plan": {"type": "array", "items": step, "description": "All steps, in order."},
            },
            required=("plan",),
        )

    def aborted(self, call: ToolCall, *, seconds: float, why: str) -> str:
        """See Tool."""
        return f"{why} after {seconds:.1f} seconds"

    async def run(self, call: ToolCall) -> str:
        """See Tool."""
        arguments = parse_arguments(PlanArguments, call)
        steps = tuple(PlanStep(step=s.step, status=s.status) for s in arguments.plan)
        now = self._thread.ports.clock.now_ms()
        item = PlanItem(id=call.id, explanation=arguments.explanation, steps=steps)
        await self._thread.journal.commit(
            ItemStarted(item=item, started_at=now),
            PlanUpdate(explanation=arguments.explanation, plan=steps),
            ItemCompleted(item=item, completed_at=now),
        )
        return "Plan updated"
