"""What one thread has in this process: shared by its session, its turns and its tools."""

import asyncio
import posixpath
from collections.abc import Sequence

from patchyard.policy import approval_key
from patchyard.protocol.events import ApprovalRemembered
from patchyard.protocol.model_items import TokenUsage
from patchyard.protocol.rollout_lines import Standing
from patchyard.rollout import RestoredThread

from .agents.agents import Agents
from .approvals import Allowed, Allowing, Approvals, Questions
from .compaction.hooks import CompactionHooks
from .config import Ports, SessionConfig, Settings
from .context.history import History
from .context.surroundings import IMAGES
from .errors import TurnError
from .hooks import Hooks, HookWords
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
        self.answering_model: str | None = None
        """Model of the newest answered request."""
        self.introduced = False
        """The session_meta line was written."""
        self.session_started = False
        """The SessionStart hooks of this session have run."""
        self.resumed = restored is not None and restored.turn_context is not None
        """An earlier session has spoken with the model already."""
        self.changed_files = False
        """A tool of the running turn may have changed the work tree."""
        self.stop_asked = asyncio.Event()
        """A person wants the running turn to end, and said so where no tool call waits for the answer."""
        self.hook_words = HookWords()
        if restored is not None:
            self._restore(restored)
        clock = ports.clock
        self.journal = Journal(ports.channel, self.redactor, self.history)
        self.questions = Questions(self.journal, clock, hold_time_s=config.hold_time_s, expiry_s=config.question_expiry_s)
        known = restored.standing if restored is not None else Standing()
        self._repository = approval_key(config.spec.repository)
        allowed = Allowed(known.approved, ports.approvals if self._repository is not None else None)
        self.approvals = Approvals(self.questions, clock, allowed, on_allowed=self._record_allowed)
        self.processes = ProcessTable(self.journal, clock, limit=config.sessions_limit, output_tokens=config.output_tokens)
        if restored is not None:
            self.journal.world = restored.world_state
            self.journal.open_items = {item.id: item for item in restored.left_open}
            if (turn := restored.turn) is not None:
                self.journal.open_items = {item.id: item for item in turn.open_items}
                self.questions.restore(turn.open_questions, until_ms=turn.parked.until if turn.parked else None)
        self.hooks = Hooks(config, ports, self.journal, lambda: self.active_settings)
        self.compaction_hooks: CompactionHooks = self.hooks.compaction
        self.approvals.hooks = self.hooks
        self.agents = Agents(
            config,
            ports.agents,
            clock,
            children=known.agents,
            on_change=self.record_standing,
            busy_box=lambda: self.processes.running,
        )
        self.journal.standing = self._standing_to_repeat
        self._instructions: dict[str, Sequence[tuple[str, str]]] = {}

    def standing(self) -> Standing:
        """What a successor has to know of this thread."""
        return Standing(approved=self.approvals.allowed.rules(), agents=self.agents.children())

    def record_standing(self) -> None:
        """Record it after a change."""
        self.journal.post(self.standing())

    def _record_allowed(self, allowing: Allowing) -> None:
        remembered = []
        if self._repository is not None and allowing.rules:
            question = allowing.question.approval_id
            rules = tuple(allowing.rules)
            remembered = [ApprovalRemembered(approval_id=question, repository=self._repository, rules=rules, by=allowing.by)]
        self.journal.post(*remembered, self.standing())

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
        """AGENTS.md files of the base commit that apply in the present folder, root first. TurnError: no repository to be had."""
        folder = self._folder()
        if folder not in self._instructions:
            try:
                self._instructions[folder] = await self.ports.sandbox.instructions(folder)
            except SandboxError as error:
                raise TurnError(error.info) from error
        return self._instructions[folder]

    def _folder(self) -> str:
        """The working directory below the workspace; empty at its root and outside of it."""
        root, cwd = posixpath.normpath(self.config.cwd), posixpath.normpath(self.active_settings.cwd)
        return cwd[len(root) + 1 :] if cwd.startswith(f"{root}/") else ""

    def _restore(self, restored: RestoredThread) -> None:
        self.history.images = (restored.world_state or {}).get(IMAGES, True)
        self.history.restart(restored.history, window_number=restored.window_number)
        if restored.last_usage is not None:
            self.history.response_counted(restored.last_usage, items=restored.counted_items)
        self.introduced = restored.meta is not None
        self.usage = restored.usage
        self.cost_usd = restored.cost_usd
        if (context := restored.turn_context) is not None:
            self.settings = Settings(context.model, context.effort, context.approval, context.sandbox, context.cwd)
            self.answering_model = context.model
        goes_on = restored.turn is not None and restored.turn.input_recorded
        self.active_settings = self.settings
        self.settings = self.settings.merged(restored.overrides)
        if not goes_on:
            self.active_settings = self.settings
