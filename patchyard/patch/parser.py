"""The one parser of the patch grammar. It takes text as it arrives; `parse` is the same machine fed once.

Runs of `+` lines and of hunk lines are taken whole with one search, so the cost per line is C speed; only headers and `@@`
lines are looked at one by one. Lines are complete before they are looked at, so how the text was split can not matter.
"""

import re
from typing import NoReturn, assert_never

from ._assembly import Assembly, FileProgress, State
from ._envelope import Envelope
from .errors import EmptyPatchError, PatchSyntaxError, clip
from .hunks import ADD, BEGIN, DELETE, END, END_OF_FILE, ENVIRONMENT, MOVE, UPDATE, WHITESPACE, Hunk, Patch

_AFTER_ADDED = re.compile(r"\n(?!\+)")
_AFTER_CHUNK = re.compile(r"\n(?![ +\-\n])")
_CHUNK_PREFIXES = " +-\n"

_BEGIN, _ADD, _UPDATE, _CHUNK_OPEN, _CHUNK = State.BEGIN, State.ADD, State.UPDATE, State.CHUNK_OPEN, State.CHUNK
_MAY_END_PADDED = (State.CHUNK, State.CHUNK_CLOSED, State.ENDED)


class PatchParser:
    """Parses a patch while it arrives.

    `feed` never raises: an error in the text waits for `finish`, because a watcher of the progress can do nothing about it.
    """

    def __init__(self) -> None:
        self._state = State.BEGIN
        self._envelope = Envelope()
        self._held = ""
        """A padded end marker after a hunk ends the patch only as its last line: kept until that is known."""
        self._blank_after_end = False
        self._end_repeated = False
        """The end marker may stand twice, as recorded."""
        self._error: PatchSyntaxError | None = None
        self._line = 0
        self._environment_id: str | None = None
        self._assembly = Assembly()

    @property
    def progress(self) -> tuple[FileProgress, ...]:
        """All operations seen so far, in order."""
        return tuple(self._assembly.progress())

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        """The operations that have arrived completely."""
        return tuple(self._assembly.hunks)

    def feed(self, text: str) -> tuple[FileProgress, ...]:
        """Take more text; returns the operations that began or grew with it."""
        first = self._assembly.closed_count()
        before = self._assembly.progress(first)
        self._take(self._envelope.open(text))
        after = self._assembly.progress(first)
        return tuple(after[1:] if before and after[:1] == before else after)

    def finish(self) -> Patch:
        """The whole patch. Raises PatchSyntaxError when the text was not one."""
        self._take(self._envelope.close())
        if self._error is None:
            try:
                self._close_text()
            except PatchSyntaxError as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return Patch(self.hunks, self._environment_id)

    # --- text ---------------------------------------------------------------------------------

    def _take(self, block: str) -> None:
        if self._error is None and block:
            try:
                self._consume(block)
            except PatchSyntaxError as error:
                self._error = error

    def _consume(self, block: str) -> None:
        if self._held:
            block, self._held = self._held + block, ""
        position = 0
        while position < len(block):
            state, first = self._state, block[position]
            if _UPDATE <= state <= _CHUNK and first in _CHUNK_PREFIXES:
                position = self._take_chunk_lines(block, position)
            elif state is _ADD and first == "+":
                position = self._take_added(block, position)
            else:
                end = block.index("\n", position)
                self._line += 1
                line = block[position:end]
                if first in WHITESPACE and state in _MAY_END_PADDED and self._is_padded_end(line, block[end:]):
                    self._line -= 1
                    self._held = block[position:]
                    return
                position = end + 1
                if state is _CHUNK:
                    self._take_after_chunk(line)
                else:
                    self._take_line(state, line)

    def _is_padded_end(self, line: str, rest: str) -> bool:
        return line.strip(WHITESPACE) == END and not rest.strip(WHITESPACE)

    def _close_text(self) -> None:
        blank_after_end = self._blank_after_end
        if self._held:  # the padded end marker was the last line
            blank_after_end = self._held.count("\n") > 1
            self._line += 1
            if self._state is _CHUNK:
                if not self._assembly.chunk_lines:
                    self._fail("the hunk has no line. Add lines that start with a space (kept), `-` (removed) or `+` (added).")
                self._assembly.close_chunk(at_end=False)
            if self._state is State.ENDED:
                self._take_after_end(END)
            else:
                self._assembly.close_update()
            self._state = State.ENDED
        if self._state is _BEGIN:
            raise PatchSyntaxError(f"The patch is empty or does not start with `{BEGIN}`. Begin it with that line.", line=1)
        if not self._envelope.is_closed() or (self._envelope.is_heredoc and blank_after_end):
            raise PatchSyntaxError(
                f"The heredoc must end with `{END}` and, on the next line, `EOF`. Send the patch again, complete."
            )
        if self._state is not State.ENDED:
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
        if self._state is not _CHUNK:
            if self._state is not _CHUNK_OPEN:
                self._assembly.open_chunk(self._line + 1)
            self._state = _CHUNK
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

    def _take_line(self, state: State, line: str) -> None:
        match state:
            case State.BEGIN:
                self._take_begin(line)
            case State.START:
                self._take_start(line)
            case State.HEADER:
                self._take_header(line)
            case State.ADD:
                self._assembly.close_add()
                self._take_header(line)
            case State.UPDATE | State.FIRST_CHUNK:
                self._take_update_start(line)
            case State.CHUNK_OPEN:
                if not self._take_context(line):
                    self._fail(
                        f"after `@@`, `{clip(line)}` is not a line of a hunk. Follow `@@` with lines that start with a space "
                        "(kept), `-` (removed) or `+` (added)."
                    )
            case State.CHUNK:
                self._take_after_chunk(line)
            case State.CHUNK_CLOSED:
                if line.strip(WHITESPACE) and not self._take_context(line):
                    self._take_header_after_chunk(line)
            case State.ENDED:
                self._take_after_end(line)
            case _:
                assert_never(state)

    def _take_begin(self, line: str) -> None:
        if line.strip(WHITESPACE) != BEGIN:
            self._fail(f"the first line must be `{BEGIN}`, not `{clip(line)}`. Send only the patch, without text around it.")
        self._state = State.START
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
        self._state = State.HEADER
        if text == END:
            self._state = State.ENDED
        elif text.startswith(ADD):
            self._assembly.open("add", text[len(ADD) :], self._line)
            self._state = State.ADD
        elif text.startswith(UPDATE):
            self._assembly.open("update", text[len(UPDATE) :], self._line)
            self._state = State.UPDATE
        elif text.startswith(DELETE):
            self._assembly.open("delete", text[len(DELETE) :], self._line)
        else:
            self._fail(
                f"`{clip(text)}` does not start an operation. Expected `{ADD}path`, `{UPDATE}path`, `{DELETE}path` or `{END}`; "
                "every line of a new file starts with `+`, every line of a hunk with a space, `-` or `+`."
            )

    def _take_update_start(self, line: str) -> None:
        if self._state is State.UPDATE:
            self._state = State.FIRST_CHUNK
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
        text = line if line == "@@" else line.rstrip(WHITESPACE)
        if text != "@@" and not text.startswith("@@ "):
            return False
        if self._state is not _CHUNK_OPEN:
            self._state = _CHUNK_OPEN
            self._assembly.open_chunk(self._line)
        if len(text) > 3:
            self._assembly.add_context(text[3:])
        return True

    def _take_after_chunk(self, line: str) -> None:
        at_end = line.startswith(END_OF_FILE) and line.rstrip(WHITESPACE) == END_OF_FILE
        self._assembly.close_chunk(at_end=at_end)
        if at_end:
            self._state = State.CHUNK_CLOSED
        elif not self._take_context(line):
            self._take_header_after_chunk(line)

    def _take_header_after_chunk(self, line: str) -> None:
        if line[0] in WHITESPACE:
            self._fail(f"`{clip(line)}` is no line of a hunk. Start headers and `@@` lines in the first column.")
        self._assembly.close_update()
        self._take_header(line)

    def _take_after_end(self, line: str) -> None:
        text = line.rstrip(WHITESPACE)
        if text and (text != END or self._end_repeated):
            self._fail(f"`{END}` must be the last line, but `{clip(text)}` follows. Remove what comes after it.")
        self._blank_after_end = not text
        self._end_repeated = self._end_repeated or text == END

    def _fail(self, message: str) -> NoReturn:
        raise PatchSyntaxError(f"Line {self._line} of the patch: {message}", line=self._line)


def parse(text: str) -> Patch:
    """Parse a complete patch, bare or wrapped in `<<EOF` … `EOF`. Raises PatchSyntaxError."""
    parser = PatchParser()
    parser.feed(text)
    return parser.finish()
