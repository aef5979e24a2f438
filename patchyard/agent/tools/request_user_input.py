"""request_user_input: asks a person, holds for a while, then the turn parks; the answer resumes it under the same id."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from patchyard.agent.errors import ToolError
from patchyard.agent.prompts import tool_description
from patchyard.agent.thread import Thread
from patchyard.protocol.events import RequestUserInput, UserQuestion
from patchyard.protocol.policies import ApprovalMode

from .calls import Arguments, ToolCall, function_spec, parse_arguments


class _Option(Arguments):
    label: str
    description: str = ""

    def shown(self) -> str:
        return f"{self.label}: {self.description}" if self.description else self.label


class _Question(Arguments):
    id: str = Field(min_length=1)
    question: str = Field(min_length=1)
    header: str = ""
    options: tuple[str | _Option, ...] = ()


class QuestionArguments(Arguments):
    """Arguments of request_user_input."""

    questions: tuple[_Question, ...] = Field(min_length=1, max_length=3)


class RequestUserInputTool:
    """See the module."""

    name = "request_user_input"
    kind: Literal["function", "custom"] = "function"
    parallel = True

    def __init__(self, thread: Thread) -> None:
        self._thread = thread

    def spec(self) -> Mapping[str, Any]:
        """See Tool."""
        question = {
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "A name of yours; the answer comes under it."},
                "header": {"type": "string", "description": "Two or three words that say what it is about."},
                "question": {"type": "string"},
                "options": {"type": "array", "items": {"type": "string"}, "description": "Answers to choose from."},
            },
            "required": ["id", "question"],
            "additionalProperties": False,
        }
        questions = {"type": "array", "items": question, "minItems": 1, "maxItems": 3}
        return function_spec(self.name, tool_description(self.name), {"questions": questions}, required=("questions",))

    def aborted(self, call: ToolCall, *, seconds: float, why: str) -> str:
        """See Tool."""
        return f"{why} after {seconds:.1f} seconds"

    async def run(self, call: ToolCall) -> str:
        """See Tool."""
        arguments = parse_arguments(QuestionArguments, call)
        if len({q.id for q in arguments.questions}) < len(arguments.questions):
            raise ToolError("Two questions have the same id. Give each its own.")
        if self._thread.active_settings.approval is ApprovalMode.NEVER:
            raise ToolError("Nobody can be asked in this task. Decide yourself and name your assumption in the final answer.")
        answer = await self._thread.questions.ask(
            RequestUserInput(request_id=call.id, questions=tuple(_shown(q) for q in arguments.questions))
        )
        if answer.decision == "expired":
            raise ToolError("Nobody answered in time. Decide yourself and name your assumption in the final answer.")
        answers = {q.id: {"answers": list(answer.answers.get(q.id, ()))} for q in arguments.questions}
        return json.dumps({"answers": answers}, ensure_ascii=False)


def _shown(question: _Question) -> UserQuestion:
    options = tuple(o if isinstance(o, str) else o.shown() for o in question.options)
    return UserQuestion(id=question.id, header=question.header, question=question.question, options=options)
