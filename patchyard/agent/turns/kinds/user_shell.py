"""A user's own command: a turn without a model. What came of it is in the history for the next one."""

from typing import Any, Literal

from patchyard.agent.approvals import first_of
from patchyard.agent.environment import command_environment
from patchyard.agent.errors import TurnError
from patchyard.agent.ports import ExecLimits, SandboxError, SandboxExecRequest
from patchyard.agent.tools.processes import RunningCommand
from patchyard.agent.turns import records
from patchyard.agent.turns.turn import Turn
from patchyard.protocol.errors import ErrorCode, ErrorInfo
from patchyard.protocol.events import ItemCompleted, ItemStarted, TurnRecovered
from patchyard.protocol.items import CommandExecutionItem, ItemStatus
from patchyard.protocol.model_items import Message
from patchyard.protocol.ops import RunUserShellCommand
from patchyard.protocol.policies import ReadOnly


class UserShellTurn(Turn):
    """See the module. Runs with the thread's sandbox policy; nobody is asked, since a person typed it."""

    kind: Literal["regular", "review", "compact", "user_shell"] = "user_shell"

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self._item_id = f"sh_{self.id}"

    async def _begin(self) -> None:
        if self._recovery is None:
            self._opening.announce()
            return
        self._journal.post(TurnRecovered(segment=self.segment, reason=self._thread.config.recovery_reason))
        began = self._item_id in self._journal.open_items
        self._ending.close_items()
        if began:
            message = "The command was cut off by a worker restart and is not run a second time. Run it again if you want to."
            raise TurnError(ErrorInfo.of(ErrorCode.INTERRUPTED, message))
        await self._opening.own_submission()

    async def _loop(self) -> None:
        submission = self.state.submission
        if submission is None or not isinstance(submission.op, RunUserShellCommand):
            raise AssertionError("a user_shell turn without its command")
        thread, settings = self._thread, self._thread.active_settings
        now_ms = self._clock.now_ms
        item = CommandExecutionItem(
            id=self._item_id, command=submission.op.command, cwd=settings.cwd, status=ItemStatus.IN_PROGRESS
        )
        self.state.input_recorded = True
        await self._journal.commit(ItemStarted(item=item, started_at=now_ms()), submission_id=self.id, consumed=[submission.id])
        thread.changed_files = not isinstance(settings.sandbox, ReadOnly)
        try:
            box = await thread.box()
            command = await thread.processes.start(item, box, self._request(submission.op.command))
        except (SandboxError, TurnError) as error:
            failed = item.model_copy(update={"status": ItemStatus.FAILED, "aggregated_output": error.info.message})
            self._journal.post(ItemCompleted(item=failed, completed_at=now_ms()))
            raise TurnError(error.info) from error
        await first_of(command.ended.wait())
        self._journal.post(self._note(command))
        thread.processes.forget(command)
        while not await self._finished():
            pass

    def _request(self, script: str) -> SandboxExecRequest:
        config, settings = self._thread.config, self._thread.active_settings
        return SandboxExecRequest(
            argv=("bash", "-c", script),
            cwd=settings.cwd,
            env=command_environment(config, settings.sandbox),
            policy=settings.sandbox,
            limits=ExecLimits(wall_time_s=config.spec.command_timeout_s),
        )

    def _note(self, command: RunningCommand) -> Message:
        """What the next turn's model reads of it."""
        status = command.status
        code = "it was stopped" if status is None else f"exit code {status.code}"
        if command.timed_out or (status is not None and status.timed_out):
            code += ", stopped at its time limit"
        output = self._thread.redactor.text(command.unread.take().shaped(self._thread.config.output_tokens))
        return records.note(
            "<user_shell_command>\nA person ran this command in your workspace themselves.\n"
            f"<command>\n{command.item.command}\n</command>\n<result>\n{code}\n{output}\n</result>\n</user_shell_command>"
        )
