import io

import pytest
from rich.console import Console

from patchyard.cli.errors import ExitCode
from patchyard.cli.render.stream import StreamView
from patchyard.cli.render.summary import print_summary
from patchyard.cli.render.text import amount, duration, money, one_line, safe
from patchyard.cli.render.trace import trace_tree
from patchyard.cli.running.outcome import exit_code_of
from patchyard.protocol import events
from patchyard.protocol.budgets import BudgetMeter, BudgetRequest
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import DurableMsg, Event, LiveMsg, UserQuestion
from patchyard.protocol.ids import new_id
from patchyard.protocol.items import AgentMessageItem, CommandExecutionItem, FileChangeItem, FileUpdate, ItemStatus, PlanStep
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.policies import BudgetLimits
from patchyard.protocol.tasks import NoSource, PatchSummary, TaskSpec, TaskStatus, TaskView, VerifyResult, VerifySpec


def shown(*messages: DurableMsg | LiveMsg, live: bool = False) -> str:
    out = io.StringIO()
    view = StreamView(Console(file=out, width=200, highlight=False, soft_wrap=True), task_id="T", live=live)
    for message in messages:
        view.show(Event(tenant_id="default", thread_id="t", msg=message))
    return out.getvalue()


def command(output: str, code: int) -> events.ItemCompleted:
    status = ItemStatus.COMPLETED if code == 0 else ItemStatus.FAILED
    item = CommandExecutionItem(
        id="c", command="pytest -q", cwd="/w", status=status, aggregated_output=output, exit_code=code, duration_ms=1234
    )
    return events.ItemCompleted(item=item, completed_at=1)


def test_commands_show_what_ran_how_it_ended_and_the_end_of_its_output() -> None:
    text = shown(command("\n".join(f"line {n}" for n in range(20)), 1))
    assert text.splitlines() == [
        "$ pytest -q",
        "    … 14 more line(s)",
        *[f"    line {n}" for n in range(14, 20)],
        "✘ exit 1 in 1.2 s",
    ]


def test_piped_output_has_each_message_once_and_a_terminal_sees_it_typed() -> None:
    deltas = [events.AgentMessageDelta(item_id="m", delta=part) for part in ("All ", "done.")]
    whole = events.ItemCompleted(item=AgentMessageItem(id="m", text="All done."), completed_at=1)
    assert shown(*deltas, whole) == "All done.\n"
    assert shown(*deltas, whole, live=True) == "All done.\n"
    assert shown(whole, live=True) == "All done.\n", "who came late still sees it"


def test_a_patch_that_failed_says_what_it_wanted_and_why() -> None:
    change = FileUpdate(path="a.py", kind="update", diff="@@\n-x\n+y\n")
    failed = FileChangeItem(id="f", changes=(change,), status=ItemStatus.FAILED, error="It does not fit.\nLook again.")
    unread = FileChangeItem(id="g", changes=(), status=ItemStatus.FAILED, error="It is no patch.")
    text = shown(*(events.ItemCompleted(item=item, completed_at=1) for item in (failed, unread)))
    assert text.splitlines() == [
        "✘ patch failed: a.py",
        "    It does not fit.",
        "    Look again.",
        "✘ patch failed: it could not be read",
        "    It is no patch.",
    ]


def test_patches_plans_and_verification() -> None:
    change = FileUpdate(path="a.py", kind="update", diff="@@ -1 +1 @@\n-x\n+y")
    text = shown(
        events.PlanUpdate(plan=(PlanStep(step="look", status="completed"), PlanStep(step="fix", status="in_progress"))),
        events.ItemCompleted(item=FileChangeItem(id="f", changes=(change,), status=ItemStatus.COMPLETED), completed_at=1),
        events.VerificationStarted(round=1, command="pytest"),
        events.VerificationCompleted(
            result=VerifyResult(passed=False, exit_code=1, round=1, output_tail="1 failed", duration_ms=5)
        ),
    )
    assert text.splitlines() == [
        "☰ plan",
        "    ✔ look",
        "    ▸ fix",
        "± update a.py",
        "    @@ -1 +1 @@",
        "    -x",
        "    +y",
        "● verifying in a fresh container (round 1): pytest",
        "✘ verification failed: exit 1",
        "    1 failed",
    ]


def test_questions_say_how_to_answer() -> None:
    text = shown(events.ExecApprovalRequest(approval_id="A1", item_id="i", command=("rm", "-rf", "x"), cwd="/w", reason="why"))
    assert "rm -rf x" in text
    assert "patchyard tasks answer T A1 accept\n" in text
    assert "patchyard tasks answer T A1 decline\n" in text
    text = shown(events.PatchApprovalRequest(approval_id="A2", item_id="i", changes=()))
    assert "patchyard tasks answer T A2 accept\n" in text
    asked = (
        UserQuestion(id="a", header="Colour", question="Which one?", options=("red", "blue: as the sky")),
        UserQuestion(id="b", header="", question="And why?"),
    )
    assert shown(events.RequestUserInput(request_id="A3", questions=asked)).splitlines() == [
        "? [Colour] Which one?",
        "    1  red",
        "    2  blue: as the sky",
        "? And why?",
        "    answer with: patchyard tasks answer T A3 NUMBER 'ANSWER'",
    ]


def test_a_budget_that_is_used_up_is_shown_with_what_yes_means() -> None:
    meters = (BudgetMeter(budget="tokens", used=2_000_123, limit=2_000_000), BudgetMeter(budget="cost_usd", used=0.5, limit=3))
    request = BudgetRequest(
        request_id="A4",
        budget="tokens",
        used=2_000_123,
        limit=2_000_000,
        proposed=BudgetLimits(tokens=4_000_123),
        meters=meters,
    )
    resolved = events.RequestResolved(request_id="A4", decision="accept", budgets=BudgetLimits(tokens=4_000_123))
    assert shown(request, events.TurnParked(reason="budget"), resolved).splitlines() == [
        "? the turn's budget is used up (2000123 of 2000000 tokens); may it have more?",
        "    yes sets: 4000123 tokens; used so far: 2000123 of 2000000 tokens, 0.5 of 3 US dollars",
        "    answer with: patchyard tasks answer T A4 accept",
        "             or: patchyard tasks answer T A4 decline",
        "             or: patchyard tasks answer T A4 accept --budget tokens=LIMIT",
        "● the turn waits for: budget",
        "● answered: accept (4000123 tokens)",
    ]


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\rb", "a\\x0db"),
        ("a\x08b\x07", "a\\x08b\\x07"),
        ("user\u202etxt.exe", "user?txt.exe"),
        ("\x1bPq#0\x1b\\x", "x"),
        ("\x9b31mx", "\\x9b31mx"),
        ("tab\tand\nnewline", "tab\tand\nnewline"),
    ],
)
def test_text_from_outside_can_not_drive_the_terminal(hostile: str, harmless: str) -> None:
    assert safe(hostile) == harmless
    assert "[bold]" in shown(events.Warning_(message="[bold]not markup[/bold]"))


def test_numbers_are_short() -> None:
    assert [duration(value) for value in (None, 850, 12_300, 250_000, 7_500_000)] == [
        "–",
        "850 ms",
        "12.3 s",
        "4 min 10 s",
        "2 h 5 min",
    ]
    assert [amount(value) for value in (950, 12_345, 4_500_000)] == ["950", "12.3k", "4.5M"]
    assert [money(value) for value in (None, 0.01234, 1.5)] == ["unknown", "$0.0123", "$1.50"]
    assert one_line("first line\nsecond", 40) == "first line…"


def view(**fields: object) -> TaskView:
    values: dict[str, object] = {
        "id": new_id(),
        "tenant_id": "default",
        "thread_id": new_id(),
        "status": TaskStatus.SUCCEEDED,
        "reason": "completed",
        "title": "t",
        "spec": TaskSpec(repository=NoSource(), instruction="x"),
        "created_at": 1,
    }
    return TaskView.model_validate(values | fields)


VERIFIED = TaskSpec(repository=NoSource(), instruction="x", verify=VerifySpec(command="true"))
PATCH = PatchSummary(artefact_id="a", files=1, insertions=1, deletions=1, bytes=1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, ExitCode.OK),
        ({"spec": VERIFIED, "patch": PATCH, "verified": True}, ExitCode.OK),
        ({"spec": VERIFIED, "patch": PATCH, "verified": None}, ExitCode.VERIFICATION),
        ({"status": "failed", "error": ErrorInfo.of(ErrorCode.VERIFICATION_FAILED, "m")}, ExitCode.VERIFICATION),
        ({"status": "failed", "error": ErrorInfo.of(ErrorCode.BUDGET_EXCEEDED, "m")}, ExitCode.BUDGET),
        ({"status": "failed", "error": ErrorInfo.of(ErrorCode.MODEL_UNAUTHORIZED, "m")}, ExitCode.FAILED),
        ({"status": "failed", "error": ErrorInfo.of(ErrorCode.INTERRUPTED, "m")}, ExitCode.INTERRUPTED),
        ({"status": "cancelled", "reason": "interrupted"}, ExitCode.INTERRUPTED),
        ({"status": "running", "reason": "running"}, ExitCode.FAILED),
    ],
)
def test_exit_codes(fields: dict[str, object], code: ExitCode) -> None:
    assert exit_code_of(view(**fields)) is code


def test_the_summary_says_what_came_out_and_how_to_get_it() -> None:
    out = io.StringIO()
    usage = TokenUsage(input_tokens=12_345, cached_input_tokens=8000, output_tokens=900)
    task = view(spec=VERIFIED, patch=PATCH, verified=True, usage=usage)
    print_summary(Console(file=out, width=200, highlight=False), task, seconds=12.34, patch_file=None)
    lines = dict(line.split(maxsplit=1) for line in out.getvalue().splitlines() if line.strip())
    assert lines == {
        "status": "succeeded",
        "verified": "yes",
        "patch": f"1 file(s), +1 −1: patchyard tasks patch {task.id} | git apply",
        "tokens": "12.3k in (8.0k cached), 900 out",
        "cost": "unknown",
        "time": "12.3 s",
        "more": f"patchyard tasks show {task.id} · patchyard trace {task.id}",
    }


def test_a_trace_is_drawn_as_a_tree_with_bars() -> None:
    def node(name: str, start: int, end: int | None, *children: object, **attributes: object) -> dict[str, object]:
        return {
            "name": name,
            "kind": "span",
            "start_ms": start,
            "end_ms": end,
            "attributes": attributes,
            "children": list(children),
        }

    root = node("task", 0, 1000, node("queue", 0, 250), node("chat gpt", 250, None, model="gpt"))
    out = io.StringIO()
    Console(file=out, width=120, highlight=False).print(trace_tree({"trace_id": "abc", "root": root}))
    lines = out.getvalue().splitlines()
    assert lines[0].strip() == "trace abc"
    assert "task  1.0 s  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━" in lines[1]
    assert "queue  250 ms  ━━━━━━━·····················" in lines[2]
    assert "chat gpt  not ended  ·······━━━━━━━━━━━━━━━━━━━━━  model=gpt" in lines[3]
    assert "no records yet" in str(trace_tree({"trace_id": "abc", "root": None}))
