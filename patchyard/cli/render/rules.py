"""Approvals that are kept for a repository."""

import time
from collections.abc import Sequence
from typing import assert_never

from rich.table import Table
from rich.text import Text

from patchyard.cli.context import stdout
from patchyard.protocol.approvals import AllowedCommand, AllowedPath, AllowedPrefix, ApprovalRule, ApprovalView

from .text import duration, one_line, safe


def rule_text(rule: ApprovalRule) -> str:
    """What is allowed, in a few words."""
    match rule:
        case AllowedCommand():
            return f"command {safe(rule.script)}"
        case AllowedPrefix():
            return f"commands that begin with {safe(' '.join(rule.words))}"
        case AllowedPath():
            return f"patches of {safe(rule.path)}"
        case _:
            assert_never(rule)


def print_approvals(approvals: Sequence[ApprovalView]) -> None:
    """A table, newest first."""
    table = Table(box=None, pad_edge=False)
    for column, least in (("APPROVAL", 36), ("REPOSITORY", 10), ("BY", 5), ("AGE", 7), ("WHAT", 8)):
        table.add_column(column, overflow="ellipsis", no_wrap=True, min_width=least)
    now = int(time.time() * 1000)
    for approval in approvals:
        revoked = "" if approval.revoked_at is None else f"(revoked by {approval.revoked_by or '?'}) "
        cells = (
            approval.id,
            approval.repository,
            approval.approved_by or "?",
            duration(max(0, now - approval.approved_at)),
            revoked + rule_text(approval.rule),
        )
        table.add_row(*(Text(one_line(cell, 200)) for cell in cells), style="dim" if revoked else "")
    stdout().print(table)
