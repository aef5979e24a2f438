"""Tool hooks for patches that are no call of the tool: those of the box's program, and those found in a command."""

from collections.abc import Awaitable, Callable

from patchyard.agent.errors import ToolError
from patchyard.agent.thread import Thread

_TOOL = "apply_patch"


async def with_hooks(thread: Thread, item_id: str, text: str, apply: Callable[[str], Awaitable[str]]) -> str:
    """What `apply` reports, with the tool's hooks around it. ToolError: a PreToolUse hook refused the patch.

    Hooks run beside the command whose program waits for this. A hook's own `apply_patch` has no handler and is refused at
    once, so hooks never start hooks.
    """
    hooks, words = thread.hooks, thread.hook_words
    before = await hooks.before_tool(_TOOL, {"command": text}, item_id)
    words.note(hooks.notes(before))
    if before.block is not None:
        raise ToolError(f"Command blocked by PreToolUse hook: {before.block}. Nothing was changed.")
    if before.updated_input is not None:
        changed = before.updated_input.get("command")
        if not isinstance(changed, str):
            raise ToolError("A PreToolUse hook gave no `command` as new input of apply_patch. Nothing was changed.")
        text = changed
    report = await apply(text)
    after = await hooks.after_tool(_TOOL, {"command": text}, item_id, report)
    words.note(hooks.notes(after))
    words.ask_to_stop(after.stop)
    return report if after.block is None else after.block
