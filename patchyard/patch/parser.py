"""The one parser of the patch grammar. It takes text as it arrives; `parse` is the same machine fed once.

Runs of `+` lines and of hunk lines are taken whole with one search, so the cost per line is C speed; only headers and `@@`
lines are looked at one by one. Lines are complete before they are looked at, so how the text was split can not matter.
"""

import re
from enum import Enum, auto
from typing import NoReturn, assert_never

from ._assembly import Assembly, FileProgress
from .errors import EmptyPatchError, PatchSyntaxError, clip
from .hunks import (
    ADD,
    BEGIN,
    DELETE,
    END,
    END_OF_FILE,
    ENVIRONMENT,
    MOVE,
    UPDATE,
    WHITESPACE,
    Hunk,
    Patch,
)

_HEREDOCS = frozenset({"<<EOF", "<<'EOF'", '<<"EOF"'})
_CARRIAGE_RETURNS = re.compile(r"\r+\n")
_AFTER_ADDED = re.compile(r"\n(?!\+)")
_AFTER_CHUNK = re.compile(r"\n(?![ +\-\n])")
_CHUNK_PREFIXES = " +-\n"


class _State(Enum):
    BEGIN = auto()
    START = auto()
    """After the first line."""
    HEADER = auto()
    ADD = auto()
    UPDATE = auto()
    """After the header of an update: a move may follow."""
    FIRST_CHUNK = auto()
    """The first chunk may do without `@@`."""
    CHUNK_OPEN = auto()
    """After `@@`: another one or a line of the hunk must follow."""
    CHUNK = auto()
    CHUNK_CLOSED = auto()
    """After `*** End of File`."""
    ENDED = auto()


_MAY_START_CHUNK = frozenset({_State.UPDATE, _State.FIRST_CHUNK, _State.CHUNK_OPEN, _State.CHUNK})


class PatchParser:
    """Parses a patch while it arrives.

    `feed` never raises: an error in the text waits for `finish`, because a watcher of the progress can do nothing about it.
    """

    def __init__(self) -> None:
        self._state = _State.BEGIN
        self._partial: list[str] = []
        self._held = ""
        """A padded end marker inside a hunk is a context line unless it is the last line: kept until that is known."""
        self._heredoc = False
        self._heredoc_held = ""
        """Inside a heredoc the last line with text may be its terminator."""
        self._blank_after_end = False
        self._error: PatchSyntaxError | None = None
        self._line = 0
        self._environment_id: str | None = None
        self._assembly = Assembly()

    @property
    def progress(self) -> tuple[FileProgress, ...]:
        """All operations seen so far, in order."""
        return tuple(self._assembly.progress)

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        """The operations that have arrived completely."""
        return tuple(self._assembly.hunks)

    def feed(self, text: str) -> tuple[FileProgress, ...]:
        """Take more text; returns the operations that began or grew with it."""
        progress = self._assembly.progress
        first = max(len(progress) - 1, 0)
        before = progress[first:]
        if "\n" in text:
            complete, _, rest = text.rpartition("\n")
            block = "".join([*self._partial, complete, "\n"])
            self._partial = [rest] if rest else []
            self._arrive(block)
        elif text:
            self._partial.append(text)
        after = progress[first:]
        return tuple(after[1:] if after[:1] == before else after)

    def finish(self) -> Patch:
        """The whole patch. Raises PatchSyntaxError when the text was not one."""
        if self._partial:
            self._arrive("".join([*self._partial, "\n"]))
            self._partial = []
        if self._error is None:
            try:
                self._close_text()
            except PatchSyntaxError as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return Patch(self.hunks, self._environment_id)

    # --- text ---------------------------------------------------------------------------------

    def _arrive(self, block: str) -> None:
        if self._error is not None:
            return
        if "\r" in block:
            block = _CARRIAGE_RETURNS.sub("\n", block)
        try:
            self._consume(self._unwrap(block))
        except PatchSyntaxError as error:
            self._error = error

    def _unwrap(self, block: str) -> str:
        """Drop what is around the patch: blank lines before it, and a heredoc's first and last line."""
        if self._state is _State.BEGIN and not self._heredoc:
            block = block.lstrip(WHITESPACE)
            first, _, rest = block.partition("\n")
            if first in _HEREDOCS:
                self._heredoc = True
                block = rest
        if not self._heredoc:
            return block
        block = self._heredoc_held + block
        cut = block.rfind("\n", 0, len(block.rstrip(WHITESPACE))) + 1
        self._heredoc_held = block[cut:]
        return block[:cut]

    def _consume(self, block: str) -> None:
        if self._held:
            block, self._held = self._held + block, ""
        position = 0
        while position < len(block):
            if self._state is _State.ADD and block[position] == "+":
                position = self._take_added(block, position)
            elif self._state in _MAY_START_CHUNK and block[position] in _CHUNK_PREFIXES:
                position = self._take_chunk_lines(block, position)
            else:
                end = block.index("\n", position)
                self._line += 1
                self._take_line(block[position:end])
                position = end + 1

    def _close_text(self) -> None:
        after_end = self._blank_after_end
        if self._held:  # the padded end marker was the last line
            after_end = self._held.count("\n") > 1
            self._line += 1
            if not self._assembly.chunk_lines:
                self._fail("the hunk has no line. Add lines that start with a space (kept), `-` (removed) or `+` (added).")
            self._assembly.close_chunk(at_end=False)
            self._assembly.close_update()
            self._state = _State.ENDED
        if self._state is _State.BEGIN:
            raise PatchSyntaxError(f"The patch is empty or does not start with `{BEGIN}`. Begin it with that line.", line=1)
        closed = self._heredoc_held.rstrip(WHITESPACE).endswith("EOF") and not after_end if self._heredoc else True
        if self._state is not _State.ENDED or not closed:
            raise PatchSyntaxError(
                f"The last line of the patch must be `{END}`, but the text stops before it. "
                "Send the patch again, complete, with that line at its end.",
                line=self._line,
            )
        if not self._assembly.hunks:
            raise EmptyPatchError(
                f"The patch changes no file. Put `{ADD}path`, `{UPDATE}path` or `{DELETE}path` between its first and last line."
            )

    # --- runs of lines ------------------------------------------------------------------------

    def _take_added(self, block: str, position: int) -> int:
        match = _AFTER_ADDED.search(block, position)
        assert match is not None  # noqa: S101  a block ends with a line feed
        end = match.end()
        count = block.count("\n", position, end)
        self._line += count
        self._assembly.add_content(block[position + 1 : end].replace("\n+", "\n"), count)
        return end

    def _take_chunk_lines(self, block: str, position: int) -> int:
        if self._state is not _State.CHUNK:
            if self._state is not _State.CHUNK_OPEN:
                self._assembly.open_chunk(self._line + 1)
            self._state = _State.CHUNK
        match = _AFTER_CHUNK.search(block, position)
        assert match is not None  # noqa: S101  a block ends with a line feed
        end = match.end()
        if end == len(block):
            text = block[position:end].rstrip(WHITESPACE)
            last = text.rfind("\n") + 1
            if text[last : last + 1] == " " and text[last:].strip(WHITESPACE) == END:
                self._held = block[position + last :]
                end = position + last
                if end == position:
                    return len(block)
        lines = block[position : end - 1].split("\n")
        if "" in lines:
            lines = [line or " " for line in lines]
        self._line += len(lines)
        added = block.count("\n+", position, end) + (block[position] == "+")
        removed = block.count("\n-", position, end) + (block[position] == "-")
        self._assembly.add_chunk_lines(lines, added=added, removed=removed)
        return len(block) if self._held else end

    # --- single lines -------------------------------------------------------------------------

    def _take_line(self, line: str) -> None:
        match self._state:
            case _State.BEGIN:
                self._take_begin(line)
            case _State.START:
                self._take_start(line)
            case _State.HEADER:
                self._take_header(line)
            case _State.ADD:
                self._assembly.close_add()
                self._take_header(line)
            case _State.UPDATE | _State.FIRST_CHUNK:
                self._take_update_start(line)
            case _State.CHUNK_OPEN:
                if not self._take_context(line):
                    self._fail(
                        f"after `@@`, `{clip(line)}` is not a line of a hunk. Follow `@@` with lines that start with a space "
                        "(kept), `-` (removed) or `+` (added)."
                    )
            case _State.CHUNK:
                self._take_after_chunk(line)
            case _State.CHUNK_CLOSED:
                if line.strip(WHITESPACE) and not self._take_context(line):
                    self._assembly.close_update()
                    self._take_header(line)
            case _State.ENDED:
                self._take_after_end(line)
            case _:
                assert_never(self._state)

    def _take_begin(self, line: str) -> None:
        if line.strip(WHITESPACE) != BEGIN:
            self._fail(f"the first line must be `{BEGIN}`, not `{clip(line)}`. Send only the patch, without text around it.")
        self._state = _State.START
        self._line = 1

    def _take_start(self, line: str) -> None:
        text = line.strip(WHITESPACE)
        if not text.startswith(ENVIRONMENT):
            self._take_header(line)
            return
        value = text[len(ENVIRONMENT) :].strip(WHITESPACE)
        if not value or self._environment_id is not None:
            self._fail(f"`{ENVIRONMENT}` may stand once, with a name after it. Leave the line out: it has no effect here.")
        self._environment_id = value

    def _take_header(self, line: str) -> None:
        text = line.strip(WHITESPACE)
        self._state = _State.HEADER
        if text == END:
            self._state = _State.ENDED
        elif text.startswith(ADD):
            self._assembly.open("add", text[len(ADD) :], self._line)
            self._state = _State.ADD
        elif text.startswith(UPDATE):
            self._assembly.open("update", text[len(UPDATE) :], self._line)
            self._state = _State.UPDATE
        elif text.startswith(DELETE):
            self._assembly.open("delete", text[len(DELETE) :], self._line)
        else:
            self._fail(
                f"`{clip(text)}` does not start an operation. Expected `{ADD}path`, `{UPDATE}path`, `{DELETE}path` or `{END}`; "
                "every line of a new file starts with `+`, every line of a hunk with a space, `-` or `+`."
            )

    def _take_update_start(self, line: str) -> None:
        if self._state is _State.UPDATE:
            self._state = _State.FIRST_CHUNK
            target = line[len(MOVE) :].rstrip(WHITESPACE)
            if line.startswith(MOVE) and target:
                self._assembly.move(target)
                return
        if self._take_context(line) or line.rstrip(WHITESPACE) == END_OF_FILE:
            return
        self._fail(
            f"the update of `{clip(self._assembly.path)}` has no hunk before `{clip(line)}`. Start one with `@@`, then lines "
            "that start with a space (kept), `-` (removed) or `+` (added); to rename only, keep one line as context."
        )

    def _take_context(self, line: str) -> bool:
        text = line.rstrip(WHITESPACE)
        if text != "@@" and not text.startswith("@@ "):
            return False
        if self._state is not _State.CHUNK_OPEN:
            self._state = _State.CHUNK_OPEN
            self._assembly.open_chunk(self._line)
        if len(text) > 3:
            self._assembly.add_context(text[3:])
        return True

    def _take_after_chunk(self, line: str) -> None:
        at_end = line.rstrip(WHITESPACE) == END_OF_FILE
        self._assembly.close_chunk(at_end=at_end)
        if at_end:
            self._state = _State.CHUNK_CLOSED
        elif not self._take_context(line):
            self._assembly.close_update()
            self._take_header(line)

    def _take_after_end(self, line: str) -> None:
        text = line.strip(WHITESPACE)
        if text and text != END:
            self._fail(f"`{END}` must be the last line, but `{clip(text)}` follows. Remove what comes after it.")
        self._blank_after_end = not text

    def _fail(self, message: str) -> NoReturn:
        raise PatchSyntaxError(f"Line {self._line} of the patch: {message}", line=self._line)


def parse(text: str) -> Patch:
    """Parse a complete patch, bare or wrapped in `<<EOF` … `EOF`. Raises PatchSyntaxError."""
    parser = PatchParser()
    parser.feed(text)
    return parser.finish()
