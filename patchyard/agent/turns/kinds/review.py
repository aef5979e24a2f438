"""A review turn: looks at the changes with a prompt of its own, changes nothing, and reports findings as data."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import from_json

from patchyard.agent.config import Settings
from patchyard.agent.prompts import review_prompt
from patchyard.agent.turns import records
from patchyard.agent.turns.turn import Turn
from patchyard.protocol.events import DurableMsg, ReviewCompleted, ReviewFinding, TurnCompleted, Warning_
from patchyard.protocol.model_items import Message
from patchyard.protocol.policies import ApprovalMode, ReadOnly

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "findings": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "title": {"type": "string"},
                    "body": {"type": "string"},
                    "priority": {"type": "integer"},
                    "confidence": {"type": "number"},
                    "path": {"type": ["string", "null"]},
                    "line_start": {"type": ["integer", "null"]},
                    "line_end": {"type": ["integer", "null"]},
                },
                "required": ["title", "body", "priority", "confidence", "path", "line_start", "line_end"],
                "additionalProperties": False,
            },
        },
        "correct": {"type": "boolean"},
        "explanation": {"type": "string"},
    },
    "required": ["findings", "correct", "explanation"],
    "additionalProperties": False,
}


class ReviewTurn(Turn):
    """See the module. It can't be steered."""

    kind: Literal["regular", "review", "compact", "user_shell"] = "review"

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.output_schema = _SCHEMA
        self._review: ReviewCompleted | None = None

    def settings_from(self, settings: Settings) -> Settings:
        """Nothing can be changed, and nobody is asked."""
        return replace(settings, sandbox=ReadOnly(), approval=ApprovalMode.NEVER)

    def _context(self) -> tuple[Message, ...]:
        return (records.note(review_prompt(), role="developer"),)

    async def _more_to_do(self) -> bool:
        return False

    def _results(self) -> Sequence[DurableMsg]:
        self._review = read_findings(self.state.last_message)
        if self._review is None:
            return (Warning_(message="The review's answer is not in the asked form; it is shown as it came."),)
        return (self._review,)

    def _completed(self) -> TurnCompleted:
        ended = super()._completed()
        return ended if self._review is None else ended.model_copy(update={"last_agent_message": in_words(self._review)})


def read_findings(text: str | None) -> ReviewCompleted | None:
    """The findings in a model's answer; None when there is no such object in it."""
    text = text or ""
    start, end = text.find("{"), text.rfind("}")
    try:
        found = from_json(text[start : end + 1])
        findings = [
            ReviewFinding.model_validate({k: v for k, v in f.items() if k in _FIELDS}) for f in found.get("findings", ())
        ]
        ordered = sorted(findings, key=lambda finding: finding.priority)
        correct = bool(found["correct"])
        return ReviewCompleted(correct=correct, explanation=str(found.get("explanation", "")), findings=tuple(ordered))
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError):
        return None


_FIELDS = frozenset(ReviewFinding.model_fields)


def in_words(review: ReviewCompleted) -> str:
    """The review as people read it."""
    lines = [review.explanation.strip() or ("The change is correct." if review.correct else "The change is not correct.")]
    for finding in review.findings:
        where = ""
        if finding.path:
            span = f":{finding.line_start}" if finding.line_start else ""
            span += f"-{finding.line_end}" if finding.line_end and finding.line_end != finding.line_start else ""
            where = f" ({finding.path}{span})"
        lines += ["", f"- [P{finding.priority}] {finding.title}{where}", f"  {finding.body}"]
    return "\n".join(lines)
