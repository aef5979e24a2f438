"""Random files with patches that nearly fit: what a model writes when it is right, sloppy, or wrong."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

from .patch_model import Entry, Files

_WORDS = [
    "a",
    "b",
    "c",
    "x",
    "def m():",
    "    return 1",
    "  a",
    "a  ",
    "\tb",
    "",
    "",
    "}",
    "say \u201chi\u201d",
    'say "hi"',
    "a \u2013 b",
    "a - b",
    "a\u00a0b",
]
_PATHS = ["f", "g", "d/h", "./f", "d/../g", "new", "d/e/new", "run.sh"]
_RARE_PATHS = ["d", "f/x", "../up", "d/", " f", "'f'"]
_JUNK = [
    "",
    " ",
    "@@",
    "@@ ",
    "@@ a",
    "@@ zz",
    "@@a",
    "*** End of File",
    " *** End of File",
    "*** End Patch",
    " *** End Patch ",
    "*** Begin Patch",
    "*** Move to: g",
    "*** Move to: ",
    "junk",
    "\t*** Delete File: g",
    "\t*** End Patch",
    "+",
    "-",
    "\t",
    "*** Delete File: g",
    " *** Add File: k",
    "*** Environment ID: e",
    "*** Foo",
    "- a",
    "+q\r",
]


@dataclass(frozen=True)
class Example:
    """Files and a patch for them."""

    files: Files
    patch: str


def lines() -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(_WORDS), max_size=9)


@st.composite
def file_data(draw: st.DrawFn) -> bytes:
    """A file's bytes: LF, CRLF or mixed, with or without a line end at its end."""
    content = draw(lines())
    ends = draw(st.sampled_from(["\n", "\n", "\n", "\r\n", "mixed"]))
    text = "".join(line + (draw(st.sampled_from(["\n", "\r\n"])) if ends == "mixed" else ends) for line in content)
    if draw(st.integers(0, 3)) == 0:
        text = text.removesuffix("\n").removesuffix("\r")
    return b"\xff" + text.encode() if draw(st.integers(0, 60)) == 0 else text.encode()


def _sloppy(draw: st.DrawFn, line: str) -> str:
    """The line as somebody remembers it."""
    how = draw(st.integers(0, 15))
    if how == 0:
        return line.strip()
    if how == 1:
        return f" {line} "
    if how == 2:
        return line.replace("\u2013", "-").replace("\u201c", '"').replace("\u201d", '"').replace("-", "\u2014")
    return draw(st.sampled_from(_WORDS)) if how == 3 else line


@st.composite
def chunk(draw: st.DrawFn, content: list[str], low: int, *, first: bool) -> tuple[list[str], int]:
    """One chunk that fits some place of the file, or nearly, mostly at or after line `low`; and where it ends."""
    out: list[str] = []
    start = draw(
        st.integers(0 if draw(st.integers(0, 9)) == 0 else min(low, max(len(content) - 1, 0)), max(len(content) - 1, 0))
    )
    stop = min(start + draw(st.integers(0, 4)), len(content))
    contexts = draw(st.sampled_from([0, 0, 0, 1, 1, 2])) if start > low or draw(st.integers(0, 9)) == 0 else 0
    if contexts == 0 and not (first and draw(st.booleans())):
        out.append(draw(st.sampled_from(["@@", "@@", "@@", "@@ "])))
    for _ in range(contexts):
        place = draw(st.integers(min(low, max(start - 1, 0)), max(start - 1, 0)))
        out.append("@@ " + (_sloppy(draw, content[place]) if content else "a"))
    for line in content[start:stop]:
        kind = draw(st.sampled_from(" -"))
        out.append("" if kind == " " and line == "" and draw(st.booleans()) else kind + _sloppy(draw, line))
        if draw(st.integers(0, 3)) == 0:
            out.append("+" + draw(st.sampled_from(_WORDS)))
    if draw(st.integers(0, 2)) == 0 or stop == start:
        out.append(draw(st.sampled_from(["+z", "+y", "+", "+z", " ", "-"])))
    if draw(st.integers(0, 6)) == 0 or (stop == len(content) and draw(st.integers(0, 3)) == 0):
        out.append("*** End of File")
    if draw(st.integers(0, 12)) == 0:
        out.append("")
    return out, stop


@st.composite
def operation(draw: st.DrawFn, files: Files) -> list[str]:
    """One operation, mostly an update of a file that exists."""
    known = sorted(files)
    paths = st.sampled_from(known + _PATHS) if draw(st.integers(0, 25)) else st.sampled_from(_RARE_PATHS)
    path = draw(st.sampled_from(known) if known and draw(st.integers(0, 6)) else paths)
    kind = draw(st.sampled_from(["update"] * 6 + ["add", "delete"]))
    if kind == "delete":
        return [f"*** Delete File: {path}"]
    if kind == "add":
        return [f"*** Add File: {path}", *("+" + line for line in draw(lines()))]
    out = [f"*** Update File: {path}"]
    if draw(st.integers(0, 7)) == 0:
        out.append(f"*** Move to: {draw(paths)}")
    entry = files.get(path.removeprefix("./"), Entry(b"a\nb\n"))
    content = entry.data.decode(errors="replace").replace("\r\n", "\n").removesuffix("\n").split("\n")
    low = 0
    for i in range(draw(st.sampled_from([1, 1, 1, 2, 2, 3]))):
        more, low = draw(chunk(content, low, first=i == 0))
        out += more
    return out


@st.composite
def examples(draw: st.DrawFn) -> Example:
    """Files and a patch."""
    files: Files = {}
    for path in draw(st.lists(st.sampled_from(["f", "g", "d/h", "run.sh"]), unique=True, min_size=1, max_size=3)):
        files[path] = Entry(draw(file_data()), path == "run.sh")
    body: list[str] = []
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        body += draw(operation(files))
    whole = ["*** Begin Patch", *body, "*** End Patch"]
    for _ in range(draw(st.sampled_from([0] * 10 + [1, 2]))):
        place = draw(st.integers(0, len(whole)))
        whole[place : place + draw(st.integers(0, 1))] = [draw(st.sampled_from(_JUNK))]
    if draw(st.integers(0, 20)) == 0:
        whole = [
            draw(st.sampled_from(["<<EOF", "<<'EOF'", '<<"EOF"', "<<END", " <<EOF"])),
            *whole,
            draw(st.sampled_from(["EOF", "xEOF", "", "EOF "])),
        ]
    end = "\r\n" if draw(st.integers(0, 9)) == 0 else "\n"
    return Example(files, end.join(whole) + draw(st.sampled_from(["", "", "\n", " \n\n"])))


_OPENINGS = (
    ["*** Update File: f", "@@", "-c", "+C"],
    ["*** Update File: f", "@@", "-c", "+C", "*** End of File"],
    ["*** Add File: n", "+x"],
    ["*** Delete File: f"],
    ["*** Update File: f"],
    ["*** Update File: f", "@@ b"],
    [],
)
_ENDINGS = (
    "*** End Patch",
    " *** End Patch",
    "\t*** End Patch ",
    "",
    "  ",
    " *** Add File: k",
    "\t*** Add File: k",
    "*** Add File: k",
    "@@",
    "\t@@ a",
    "*** End of File ",
    "junk",
    "EOF",
)


def endings() -> Iterator[Example]:
    """Every operation followed by one or two lines of every kind, bare and in a heredoc."""
    for opening in _OPENINGS:
        for ending in (*itertools.product(_ENDINGS, repeat=1), *itertools.product(_ENDINGS, repeat=2)):
            lines = ["*** Begin Patch", *opening, *ending]
            yield Example({"f": Entry(b"a\nb\nc\n")}, "\n".join(lines))
            if ending[-1] == "EOF":
                yield Example({"f": Entry(b"a\nb\nc\n")}, "\n".join(["<<EOF", *lines]))
