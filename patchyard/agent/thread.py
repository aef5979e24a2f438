"""What one thread has in this process: shared by its session, its turns and its tools."""

from collections.abc import Sequence

from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.rollout_lines import Standing
from patchyard.rollout import RestoredThread

from .approvals import Approvals, Questions
from .config import Ports, SessionConfig, Settings
from .context.history import History
from .errors import TurnError
from .hooks import Hooks
from .journal import Journal
from .ports import Sandbox, SandboxError
from .redact import Redactor
from .tools.processes import ProcessTable


class Thread:
    """Mutable state of a thread, rebuilt from its rollout."""

    def __init__(self, config: SessionConfig, ports: Ports, restored: RestoredThread | None) -> None:
        self.config = config
        self.ports = ports
        self.redactor = Redactor(config.secrets)
        self.history = History()
        self.settings = Settings.of(config)
        """Settings of the next turn."""
        self.active_settings = self.settings
        """Settings of the running turn."""
        self.usage = TokenUsage()
        self.cost_usd: float | None = None
        self.introduced = False
        """The session_meta line was written."""
        self.session_started = False
        """The SessionStart hooks of this session have run."""
        self.resumed = restored is not None and restored.turn_context is not None
        """An earlier session has spoken with the model already."""
        self.changed_files = False
        """A tool of the running turn may have changed the work tree."""
        if restored is not None:
            self._restore(restored)
        clock = ports.clock
        self.journal = Journal(ports.channel, self.redactor, self.history)
        self.questions = Questions(self.journal, clock, hold_time_s=config.hold_time_s, expiry_s=config.question_expiry_s)
        known = restored.standing if restored is not None else Standing()
        self.approvals = Approvals(self.questions, clock, approved=known.approved, on_change=self.record_standing)
        self.processes = ProcessTable(self.journal, clock, limit=config.sessions_limit, output_tokens=config.output_tokens)
        if restored is not None:
            self.journal.world = restored.world_state
            if (turn := restored.turn) is not None:
                self.journal.open_items = {item.id: item for item in turn.open_items}
                self.questions.restore(turn.open_questions, until_ms=turn.parked.until if turn.parked else None)
        self.hooks = Hooks(config, ports, self.journal, lambda: self.active_settings)
        self.approvals.hooks = self.hooks
        self.journal.standing = self._standing_to_repeat
        self._instructions: Sequence[tuple[str, str]] | None = None

    def standing(self) -> Standing:
        """What a successor has to know of this thread."""
        return Standing(approved=self.approvals.approved())

    def record_standing(self) -> None:
        """Record it after a change."""
        self.journal.post(self.standing())

    def _standing_to_repeat(self) -> Standing | None:
        standing = self.standing()
        return None if standing == Standing() else standing

    async def box(self) -> Sandbox:
        """The thread's box. TurnError when there is none to be had."""
        try:
            return await self.ports.sandbox.get()
        except SandboxError as error:
            raise TurnError(error.info) from error

    async def instructions(self) -> Sequence[tuple[str, str]]:
        """AGENTS.md files of the base commit, root first. TurnError when the repository can't be had."""
        if self._instructions is None:
            try:
                self._instructions = await self.ports.sandbox.instructions()
            except SandboxError as error:
                raise TurnError(error.info) from error
        return self._instructions

    def _restore(self, restored: RestoredThread) -> None:
        self.history.restart(restored.history, window_number=restored.window_number)
        if restored.last_usage is not None:
            self.history.response_counted(restored.last_usage)
        self.introduced = restored.meta is not None
        self.usage = restored.usage
        self.cost_usd = restored.cost_usd
        if (context := restored.turn_context) is not None:
            self.settings = Settings(context.model, context.effort, context.approval, context.sandbox, context.cwd)
        self.settings = self.settings.merged(restored.overrides)
        self.active_settings = self.settings
