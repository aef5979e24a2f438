"""What people allowed beyond one call: in this thread, and on its repository in whichever task."""

from collections.abc import Iterable, Mapping, Sequence

from patchyard.agent.recall import ApprovalMemory, Recalled
from patchyard.policy import has_forced_rm, split_script
from patchyard.protocol.approvals import (
    AllowedCommand,
    AllowedPath,
    AllowedPrefix,
    ApprovalRule,
    ApprovedCommand,
    ApprovedRules,
)


class Allowed:
    """Answers whether something was allowed already. `memory` None: there is no repository to remember it for."""

    def __init__(self, known: ApprovedRules, memory: ApprovalMemory | None) -> None:
        self._memory = memory
        # Dicts keep the order in which things were allowed: the record of them stays the same over restarts.
        self._commands = dict.fromkeys(known.commands)
        self._paths = dict.fromkeys(known.paths)
        self._prefixes = dict.fromkeys(known.prefixes)
        self._fresh: dict[ApprovalRule, int] = {}
        """Allowed in the running turn, and how often it had been revoked before: that does not touch it."""
        self._revoked: Mapping[ApprovalRule, int] = {}
        """As it was last known."""

    def rules(self) -> ApprovedRules:
        """What was allowed for the thread so far."""
        return ApprovedRules(commands=tuple(self._commands), paths=tuple(self._paths), prefixes=tuple(self._prefixes))

    def begin_turn(self) -> None:
        """From now on a revoked approval counts no more, whatever the last turn was told."""
        self._fresh.clear()

    @property
    def remembers(self) -> bool:
        """Whether what is allowed now may count for later tasks."""
        return self._memory is not None

    async def command(self, wanted: ApprovedCommand) -> bool:
        """Whether a command was allowed. One that leaves the sandbox: only in this thread, only exactly like this."""
        if wanted.escalated:
            return wanted in self._commands
        recalled = await self._recall()
        rule = AllowedCommand(script=wanted.script, cwd=wanted.cwd)
        if rule in recalled.allowed or (wanted in self._commands and self._counts(rule, recalled)):
            return True
        return self._by_prefix(wanted.script, recalled)

    async def paths(self, wanted: Sequence[str], *, inside: bool) -> bool:
        """Whether a patch may touch these files. `inside`: the sandbox lets them be written, only the policy asks."""
        recalled = await self._recall()
        own = {path for path in self._paths if self._counts(AllowedPath(path=path), recalled)}
        remembered = {rule.path for rule in recalled.allowed if isinstance(rule, AllowedPath)} if inside else set()
        return own | remembered >= set(wanted)

    def allow_command(self, command: ApprovedCommand) -> Sequence[ApprovalRule]:
        """A person allowed it for good; what may be remembered of that beyond the thread."""
        self._commands[command] = None
        return () if command.escalated else self._new([AllowedCommand(script=command.script, cwd=command.cwd)])

    def allow_prefix(self, words: tuple[str, ...]) -> Sequence[ApprovalRule]:
        """See allow_command."""
        self._prefixes[words] = None
        return self._new([AllowedPrefix(words=words)])

    def allow_paths(self, paths: Iterable[str], *, inside: bool) -> Sequence[ApprovalRule]:
        """See allow_command and paths."""
        listed = list(paths)
        self._paths |= dict.fromkeys(listed)
        rules = self._new([AllowedPath(path=path) for path in listed])
        return rules if inside else ()

    def _new(self, rules: Sequence[ApprovalRule]) -> Sequence[ApprovalRule]:
        self._fresh.update({rule: self._revoked.get(rule, 0) for rule in rules})
        return rules

    async def _recall(self) -> Recalled:
        recalled = Recalled() if self._memory is None else await self._memory.recall()
        self._revoked = recalled.revoked
        return recalled

    def _counts(self, rule: ApprovalRule, recalled: Recalled) -> bool:
        return recalled.revoked.get(rule, 0) <= self._fresh.get(rule, 0)

    def _by_prefix(self, script: str, recalled: Recalled) -> bool:
        prefixes = {words for words in self._prefixes if self._counts(AllowedPrefix(words=words), recalled)}
        if not has_forced_rm(script):  # what deletes without asking is not covered by a rule that another task was given
            prefixes |= {rule.words for rule in recalled.allowed if isinstance(rule, AllowedPrefix)}
        commands = split_script(script) if prefixes else None
        return commands is not None and all(
            any(command[: len(prefix)] == prefix for prefix in prefixes) for command in commands
        )
