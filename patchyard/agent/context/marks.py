"""Which messages of the history come from a person, and which the service wrote. Only the former outlive a window."""

from patchyard.protocol.model_items import InputText, Message, ModelItem

SUMMARY = "conversation_summary"
FRESH_WINDOW = "new_context_window"
WINDOW_REFUSED = "context_window_refused"

_SERVICE_TAGS = (
    SUMMARY,
    FRESH_WINDOW,
    "budget",
    "context_window",
    "environment_context",
    "hook_prompt",
    "turn_aborted",
    "user_shell_command",
)
_AGENTS_MD = "# AGENTS.md instructions for "


def tagged(tag: str, text: str) -> str:
    """A text of the service in its tag."""
    return f"<{tag}>\n{text}\n</{tag}>"


def is_user_message(item: ModelItem) -> bool:
    """Whether it is input: of the user, of another agent, or the feedback of a check."""
    return isinstance(item, Message) and item.role == "user" and not _of_service(item)


def _of_service(message: Message) -> bool:
    texts = [part.text for part in message.content if isinstance(part, InputText)]
    return len(texts) == len(message.content) and all(_is_service_text(text) for text in texts)


def _is_service_text(text: str) -> bool:
    if text.startswith(_AGENTS_MD):
        return text.endswith("</INSTRUCTIONS>")
    return any(text.startswith((f"<{tag}>", f"<{tag} ")) and text.endswith(f"</{tag}>") for tag in _SERVICE_TAGS)
