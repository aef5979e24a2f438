"""What must hold for every file and every edit."""

import difflib

from hypothesis import given
from hypothesis import strategies as st

from patchyard.patch import FileText, WriteFile, parse, plan

LINES = st.lists(st.sampled_from(["a", "b", "  a", "c  ", "", "+x", "-y", "@@ z", "*** End Patch", "\u2013", "d"]), max_size=25)
LINE_END = st.sampled_from(["\n", "\r\n"])


def file_text(lines: list[str], line_end: str) -> str:
    return "".join(line + line_end for line in lines)


def patch_from(before: list[str], after: list[str], context: int) -> str:
    """A patch in file order whose hunks are anchored by all lines before them, so that no earlier place can match."""
    out = ["*** Begin Patch", "*** Update File: f"]
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    done = 0
    for group in matcher.get_grouped_opcodes(context):
        out.append("@@")
        out += [f" {line}" for line in before[done : group[0][1]]]
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                out += [f" {line}" for line in before[i1:i2]]
            else:
                out += [f"-{line}" for line in before[i1:i2]] + [f"+{line}" for line in after[j1:j2]]
        done = group[-1][2]
    return "\n".join([*out, "*** End Patch"])


def apply(text: str, patch: str) -> tuple[str, str]:
    """The new text and the unified diff."""
    changes = plan(parse(patch), {"f": FileText(text.encode(), 0o644)}.get)
    written = [op.data.decode() for op in changes.operations if isinstance(op, WriteFile)]
    return (written[0] if written else text), changes.file_updates()[0].diff


def apply_unified(text: str, diff: str) -> str:
    """An independent reader of unified diffs. Places are taken from the hunk headers."""
    lines = text.split("\n")
    lines = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    out: list[str] = []
    position = 0
    rows = diff.split("\n")[:-1]
    for i, row in enumerate(rows):
        cut = i + 1 < len(rows) and rows[i + 1].startswith("\\")
        content = row[1:] + ("" if cut else "\n")
        if row.startswith("@@ -"):
            start, _, count = row.split(" ")[1][1:].partition(",")
            first = int(start) - (count != "0")
            out += lines[position:first]
            position = first
        elif row[0] == "+":
            out.append(content)
        elif row[0] in " -":
            assert lines[position] == content
            position += 1
            if row[0] == " ":
                out.append(content)
    return "".join(out + lines[position:])


@given(LINES.filter(bool), LINES.filter(bool), LINE_END, st.integers(0, 3))
def test_the_wanted_file_comes_out(before, after, line_end, context):
    if before == after:
        return
    if not any(line for line in before):
        return  # only blank lines: a hunk without context may mean any of them
    patch = patch_from(before, after, context)
    if "\n@@\n+" in patch:
        return  # a hunk of added lines only has no place of its own
    text = file_text(before, line_end)

    got, diff = apply(text, patch)

    assert got == file_text(after, line_end)
    assert apply_unified(text, diff) == got


@given(
    st.lists(st.sampled_from(["a\n", "b\r\n", "\n", "\r\n", "x\ry\n", "\t \n", "\u00e9\r\n"]), max_size=12),
    st.lists(st.sampled_from(["c\n", "d\r\n", "\n"]), max_size=12),
    st.sampled_from(["", "tail", "\u2003", "z\r"]),
)
def test_untouched_bytes_stay(above, below, tail):
    text = "".join([*above, "TARGET\n", *below]) + tail

    got, diff = apply(text, "*** Begin Patch\n*** Update File: f\n@@\n-TARGET\n+NEW\n*** End Patch")

    line_end = got[len("".join(above)) + 3 :][: len(got) - len("".join(above)) - 3 - len("".join(below) + tail)]
    assert line_end in ("\n", "\r\n")
    assert got == "".join([*above, f"NEW{line_end}", *below]) + tail
    assert apply_unified(text, diff) == got


@given(LINES, st.booleans())
def test_crlf_files_stay_crlf(lines, final):
    text = file_text([*lines, "TARGET"], "\r\n")
    if not final:
        text = text.removesuffix("\r\n")

    got, _ = apply(text, "*** Begin Patch\n*** Update File: f\n@@\n-TARGET\n+NEW\n+MORE\n*** End Patch")

    assert got == file_text([*lines, "NEW", "MORE"], "\r\n" if final or lines else "\n")
