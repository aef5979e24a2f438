"""How user input and the turn's own notes are recorded."""

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from patchyard.agent.config import Settings
from patchyard.agent.context.untrusted import fence
from patchyard.agent.prompts import base_instructions, prompt_version
from patchyard.agent.thread import Thread
from patchyard.protocol.budgets import UNITS, figure
from patchyard.protocol.events import ItemCompleted, ItemStarted, SessionConfigured
from patchyard.protocol.items import UserMessageItem
from patchyard.protocol.model_items import InputImage, InputText, Message
from patchyard.protocol.ops import (
    ImageInput,
    InterAgentCommunication,
    Review,
    ReviewTarget,
    Submission,
    TextInput,
    TurnInput,
    UserInput,
)
from patchyard.protocol.policies import BudgetLimits
from patchyard.protocol.rollout_lines import LinePayload, SessionMeta, TurnContext, WorldState

RESTARTED = "interrupted by a worker restart"
ABORTED_BY_USER = "aborted by user"
OUT_OF_TIME = "stopped: the turn's wall time is used up"
STOPPED = "stopped: the turn ended with an error"


def input_items(submission: Submission) -> Sequence[UserInput]:
    """The user input of a submission that starts or steers a turn."""
    match submission.op:
        case TurnInput():
            return submission.op.items
        case InterAgentCommunication():
            head = f"Message from the agent of thread {submission.op.author_thread_id}:"
            return (TextInput(text=f"{head}\n{submission.op.message}"),)
        case Review():
            return (TextInput(text=review_target(submission.op.target)),)
        case _:
            return ()


def review_target(target: ReviewTarget) -> str:
    """What a review looks at, in words that people and models read."""
    what = (
        f"the changes since `{target.base}` (`git diff {target.base}`, and files that git does not know yet)"
        if target.base
        else "the uncommitted changes (`git status`, `git diff HEAD`, and files that git does not know yet)"
    )
    more = f"\n\n{target.instructions.strip()}" if target.instructions else ""
    return f"Review {what}.{more}"


def text_of(submission: Submission) -> str:
    """Its texts, as hooks read them."""
    return "\n".join(item.text for item in input_items(submission) if isinstance(item, TextInput))


def is_empty(items: Sequence[UserInput]) -> bool:
    """Whether there is nothing in it for a model."""
    return all(isinstance(item, TextInput) and not item.text.strip() for item in items)


def user_records(submission: Submission, now_ms: int, *, untrusted: bool = False) -> tuple[LinePayload, ...]:
    """The item that people see and the message that the model reads."""
    items = input_items(submission)
    item = UserMessageItem(
        id=submission.id, content=tuple(items), submission_id=submission.id, idempotency_key=submission.idempotency_key
    )
    parts = tuple(_part(part, key=submission.id[-12:] if untrusted else None) for part in items)
    return (
        ItemStarted(item=item, started_at=now_ms),
        Message(role="user", content=parts),
        ItemCompleted(item=item, completed_at=now_ms),
    )


def note(text: str, *, role: str = "user") -> Message:
    """A message of the service to the model."""
    return Message.model_validate({"role": role, "content": [{"type": "input_text", "text": text}]})


def interrupted_note(*, kept: bool = False) -> Message:
    """What the next turn reads about one that was interrupted. `kept`: commands with a session go on."""
    stopped = "Its commands that have a session ID still run, the others were stopped" if kept else "Its commands were stopped"
    return note(
        f"<turn_aborted>\nA person interrupted the previous turn on purpose. {stopped} and may have done only "
        "a part of their work: check the state before you rely on it.\n</turn_aborted>"
    )


def hook_note(run_id: str, reason: str) -> Message:
    """What the model reads when a Stop hook wants more of it."""
    return note(f'<hook_prompt hook_run_id="{run_id}">{reason}</hook_prompt>')


_WRAP_UP = "wrap_up"


def wrap_up_note(spent: str, turn_id: str) -> tuple[LinePayload, ...]:
    """What the model reads at 80 % of a budget, and that it was told."""
    text = (
        f"<budget>\nThe budget of this turn is nearly used up ({spent}). Bring the work tree into a consistent state now and "
        "give your final answer: what is done, what is not.\n</budget>"
    )
    return note(text, role="developer"), _told_to_wrap_up(turn_id)


def last_answer_note(spent: str, turn_id: str) -> tuple[LinePayload, ...]:
    """What the model reads when a budget is used up and it was not told before."""
    text = (
        f"<budget>\nThe budget of this turn is used up ({spent}). No tool can be called any more. Give your final answer now: "
        "what is done, what is not, and in which state the work tree is.\n</budget>"
    )
    return note(text, role="developer"), _told_to_wrap_up(turn_id)


def more_budget_note(limits: BudgetLimits) -> tuple[LinePayload, ...]:
    """What the model reads when a person raised the limits: what it was told of the old ones does not hold any more."""
    raised = ", ".join(f"{figure(limit)} {UNITS[name]}" for name, limit in limits.named().items())
    text = (
        f"<budget>\nA person gave this turn more budget. Its limits are now: {raised}. Go on with the task where you stopped; "
        "calls that did not run or were cut off for want of budget can be made again.\n</budget>"
    )
    return note(text, role="developer"), WorldState(full=False, state={_WRAP_UP: None})


def was_told_to_wrap_up(world: Mapping[str, Any] | None, turn_id: str) -> bool:
    """Whether the turn's model has read one of the two in this context window."""
    return (world or {}).get(_WRAP_UP) == turn_id


def _told_to_wrap_up(turn_id: str) -> WorldState:
    return WorldState(full=False, state={_WRAP_UP: turn_id})


def _part(part: UserInput, *, key: str | None) -> InputText | InputImage:
    match part:
        case TextInput():
            return InputText(text=part.text if key is None else fence(part.text, key=key))
        case ImageInput():
            return InputImage(image_url=part.url, detail=part.detail)
        case _:
            assert_never(part)


def session_meta(thread: Thread) -> SessionMeta:
    """The first line of a thread."""
    config = thread.config
    return SessionMeta(
        thread_id=config.thread_id,
        tenant_id=config.tenant_id,
        task_id=config.task_id,
        spec=config.spec,
        base_instructions=base_instructions(config.family(thread.settings.model)),
        prompt_version=prompt_version(config.family(thread.settings.model)),
        patchyard_version=config.patchyard_version,
    )


def session_configured(thread: Thread) -> SessionConfigured:
    """What watchers see of it."""
    config = thread.config
    return SessionConfigured(model=thread.settings.model, cwd=config.cwd, rollout_prefix=config.rollout_prefix)


def turn_context(thread: Thread, turn_id: str, settings: Settings) -> TurnContext:
    """Settings that the turn runs with, as far as they last."""
    return TurnContext(
        turn_id=turn_id,
        model=settings.model,
        effort=settings.effort,
        cwd=settings.cwd,
        approval=settings.approval,
        sandbox=settings.sandbox,
        prompt_version=prompt_version(thread.config.family(settings.model)),
    )
