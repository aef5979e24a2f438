"""Sorts Ops into what the submit script needs to know of them; the answer itself is decided in the script."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal, assert_never

from patchyard.protocol import ops
from patchyard.protocol.ops import CONTROL_OPS, Submission

OpClass = Literal["input", "exclusive_turn", "turn_or_op", "message", "for_turn", "op", "interrupt", "shutdown"]
"""input            starts or steers, by its mode
exclusive_turn   starts a turn; refused while one runs
turn_or_op       starts a turn when idle; waits for its place in a running one
message          starts a turn when idle, steers a running one
for_turn         makes sense only while a turn is active
op               applied in order, with or without a turn
"""

TurnKind = Literal["regular", "review", "compact", "user_shell"]


@dataclass(frozen=True)
class Sorted:
    """An Op as the script sees it."""

    op_class: OpClass
    mode: str | None = None
    expected: str | None = None
    """Turn that it is meant for."""
    kind: TurnKind | None = None
    """Kind of the turn that it may start."""
    schema: str | None = None
    empty: bool = False

    def as_args(self) -> dict[str, Any]:
        """The script's named arguments; None values left out."""
        named = {"class": self.op_class, "mode": self.mode, "expected": self.expected, "kind": self.kind, "schema": self.schema}
        return {name: value for name, value in named.items() if value is not None} | {"empty": self.empty}


def sort_op(submission: Submission) -> Sorted:
    """The class of a submission's Op."""
    op = submission.op
    match op:
        case ops.TurnInput():
            return _sort_input(op)
        case ops.Interrupt():
            return Sorted("interrupt", expected=op.turn_id)
        case ops.Shutdown():
            return Sorted("shutdown")
        case ops.Review():
            return Sorted("exclusive_turn", kind="review")
        case ops.Compact():
            return Sorted("turn_or_op", kind="compact")
        case ops.RunUserShellCommand():
            return Sorted("turn_or_op", kind="user_shell")
        case ops.InterAgentCommunication():
            return Sorted("message", kind="regular") if op.trigger_turn else Sorted("op")
        case ops.TurnSettings() | ops.RecoverTurn():
            return Sorted("for_turn", expected=op.turn_id)
        case (
            ops.ExecApproval()
            | ops.PatchApproval()
            | ops.UserInputAnswer()
            | ops.BudgetAnswer()
            | ops.RequestPermissionsResponse()
            | ops.DynamicToolResponse()
            | ops.ResolveElicitation()
            | ops.SuspendTurnAndShutdown()
        ):
            return Sorted("for_turn")
        case ops.CleanBackgroundTerminals() | ops.ThreadSettings() | ops.RefreshMcpServers() | ops.ReloadUserConfig():
            return Sorted("op")
        case _:
            assert_never(op)


def is_control(submission: Submission) -> bool:
    """Whether it may use the reserved places of a full queue."""
    return submission.op.type in CONTROL_OPS


def schema_hash(schema: dict[str, Any]) -> str:
    """Equal for equal JSON Schemas, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(schema, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _sort_input(op: ops.TurnInput) -> Sorted:
    expected = op.mode.expected_turn_id if isinstance(op.mode, ops.Steer) else None
    schema = None if op.output_schema is None else schema_hash(op.output_schema)
    empty = not any(_has_content(item) for item in op.items)
    return Sorted("input", mode=op.mode.type, expected=expected, kind="regular", schema=schema, empty=empty)


def _has_content(item: ops.UserInput) -> bool:
    return not isinstance(item, ops.TextInput) or bool(item.text.strip())
