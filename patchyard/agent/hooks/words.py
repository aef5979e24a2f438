"""What tool hooks of a turn have said, kept until its step is over."""

from patchyard.protocol.model_items import Message


class HookWords:
    """Of one thread. Calls of the model and patches of the box's program speak here alike."""

    def __init__(self) -> None:
        self._notes: list[Message] = []
        self.stop: str | None = None
        """Why a hook wants the turn to end after the step."""

    def note(self, messages: tuple[Message, ...]) -> None:
        """Keep what the model is to know until the outputs of the step are recorded: these follow their calls."""
        self._notes += messages

    def take_notes(self) -> list[Message]:
        """The notes so far; they count as told."""
        notes, self._notes = self._notes, []
        return notes

    def ask_to_stop(self, reason: str | None) -> None:
        """The first reason counts; None: nobody wants that."""
        self.stop = self.stop or reason

    def clear(self) -> None:
        """A new turn begins."""
        self._notes, self.stop = [], None
