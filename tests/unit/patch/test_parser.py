"""The grammar, and the promise that the way the text arrives does not matter."""

import pytest

from patchyard.patch import (
    AddFile,
    Chunk,
    DeleteFile,
    EmptyPatchError,
    FileProgress,
    Patch,
    PatchParser,
    PatchSyntaxError,
    UpdateFile,
    parse,
)

WHOLE = """*** Begin Patch
*** Environment ID: local
*** Add File: a b.txt
+one
+
*** Delete File: d
*** Update File: f
*** Move to: g
 first

-x
+y
@@ class A
@@   def m
 z
*** End of File

*** Update File: h
@@
+last
*** End Patch
"""

PARSED = Patch(
    (
        AddFile("a b.txt", "one\n\n", 3),
        DeleteFile("d", 6),
        UpdateFile(
            "f",
            "g",
            (
                Chunk((), (" first", " ", "-x", "+y"), at_end=False, line=9),
                Chunk(("class A", "  def m"), (" z",), at_end=True, line=13),
            ),
            7,
        ),
        UpdateFile("h", None, (Chunk((), ("+last",), at_end=False, line=19),), 18),
    ),
    "local",
)


def test_whole_grammar():
    assert parse(WHOLE) == PARSED


@pytest.mark.parametrize("opening", ["<<EOF", "<<'EOF'", '<<"EOF"'])
def test_heredoc_wrapper(opening):
    assert parse(f"\n{opening}\n{WHOLE}EOF\n") == PARSED


def test_line_ends_of_the_patch_do_not_matter():
    assert parse(WHOLE.replace("\n", "\r\n")) == PARSED


def test_padded_end_marker_is_the_end_only_as_last_line():
    assert parse("*** Begin Patch\n*** Update File: f\n@@\n-x\n  *** End Patch  \n\n").hunks == (
        UpdateFile("f", None, (Chunk((), ("-x",), at_end=False, line=3),), 2),
    )
    closed = parse("*** Begin Patch\n*** Update File: f\n@@\n-x\n*** End of File\n\t*** End Patch").hunks[0]
    assert closed == UpdateFile("f", None, (Chunk((), ("-x",), at_end=True, line=3),), 2)
    middle = parse("*** Begin Patch\n*** Update File: f\n@@\n-x\n *** End Patch\n+y\n*** End Patch").hunks[0]
    assert isinstance(middle, UpdateFile)
    assert middle.chunks[0].lines == ("-x", " *** End Patch", "+y")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "does not start with"),
        ("Here:\n*** Begin Patch\n*** End Patch", 1, "first line must be"),
        ("*** Begin Patch\n*** Add File: a\n+x", 3, "stops before it"),
        ("*** Begin Patch\n*** Add File: a\n+x\ny\n*** End Patch", 4, "`y` does not start an operation"),
        ("*** Begin Patch\n*** Add File: \n+x\n*** End Patch", 2, "does not start an operation"),
        ("*** Begin Patch\n*** Update File: f\n*** End Patch", 3, "no hunk"),
        ("*** Begin Patch\n*** Update File: f\n@@\n*** End Patch", 4, "after `@@`"),
        ("*** Begin Patch\n*** Update File: f\n@@\n *** End Patch", 4, "no line"),
        ("*** Begin Patch\n*** Update File: f\n@@x\n-a\n*** End Patch", 3, "no hunk before `@@x`"),
        ("*** Begin Patch\n*** Update File: f\n@@\n-a\n*** End Patch\nthanks", 6, "`thanks` follows"),
        ("*** Begin Patch\n*** Update File: f\n-a\n\t*** Delete File: g\n*** End Patch", 4, "first column"),
        ("*** Begin Patch\n*** Update File: f\n-a\n*** End of File\n *** Delete File: g\n*** End Patch", 5, "first column"),
        ("*** Begin Patch\n*** Delete File: f\n*** End Patch\n *** End Patch\n*** End Patch", 4, "must be the last line"),
        ("*** Begin Patch\n*** Environment ID: \n*** Delete File: f\n*** End Patch", 2, "Environment ID"),
        ("<<EOF\n*** Begin Patch\n*** Delete File: f\n*** End Patch\n", None, "heredoc must end"),
    ],
)
def test_errors_name_the_line_and_the_cure(text, line, message):
    with pytest.raises(PatchSyntaxError, match=message) as caught:
        parse(text)

    assert caught.value.line == line
    assert caught.value.info.message == str(caught.value)


def test_patch_without_operations():
    with pytest.raises(EmptyPatchError):
        parse("*** Begin Patch\n*** End Patch")


def test_long_lines_are_cut_in_messages():
    with pytest.raises(PatchSyntaxError) as caught:
        parse("*** Begin Patch\n" + "x" * 5000 + "\n*** End Patch")

    assert len(str(caught.value)) < 800


def test_progress_while_the_text_arrives():
    parser = PatchParser()

    assert parser.feed("*** Begin Patch\n*** Add File: a\n+x\n+y") == (FileProgress("add", "a", None, 1, 0, complete=False),)
    assert parser.feed("y\n*** Update File: b\n*** Move to: c\n") == (
        FileProgress("add", "a", None, 2, 0, complete=True),
        FileProgress("update", "b", "c", 0, 0, complete=False),
    )
    assert parser.feed("@@\n") == ()
    assert parser.feed("-o\n+n\n+n\n") == (FileProgress("update", "b", "c", 2, 1, complete=False),)
    assert parser.hunks == (AddFile("a", "x\nyy\n", 2),)
    assert parser.feed("*** Delete File: d\n*** End Patch") == (
        FileProgress("update", "b", "c", 2, 1, complete=True),
        FileProgress("delete", "d", None, 0, 0, complete=True),
    )
    assert [p.path for p in parser.progress] == ["a", "b", "d"]
    assert len(parser.finish().hunks) == 3


def test_error_while_streaming_waits_for_the_end():
    parser = PatchParser()

    assert parser.feed("*** Begin Patch\nnonsense\n*** Delete File: d\n") == ()
    with pytest.raises(PatchSyntaxError, match="Line 2"):
        parser.finish()
