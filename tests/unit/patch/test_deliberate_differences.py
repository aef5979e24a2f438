"""Where Patchyard answers otherwise than the recorded tool, one test per row of the table in docs/subsystems/patch.md."""

import pytest

from patchyard.patch import (
    AmbiguousMatch,
    FileProblem,
    FileText,
    LinesNotFound,
    OverlappingHunks,
    PathRefused,
    RemoveFile,
    Scope,
    WriteFile,
)


def test_several_files_one_fails_nothing_changes(workspace):
    files = workspace(f="a\n")

    with pytest.raises(LinesNotFound):
        files.apply("*** Add File: new", "+x", "*** Update File: f", "@@", "-zzz", "+y")

    assert set(files.files) == {"f"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\r\nb\r\nc\r\n", "a\r\nB\r\nC\r\nc\r\n"),
        ("a\nb\r\nc\r\n", "a\nB\r\nC\r\nc\r\n"),
        ("a\r\nb\nc\n", "a\r\nB\nC\nc\n"),
        ("a\r\nb\nc", "a\r\nB\r\nC\r\nc"),
    ],
    ids=["crlf", "mostly crlf", "mostly lf", "tie: the first one's"],
)
def test_touched_lines_get_the_dominant_line_end(workspace, before, after):
    assert workspace(f=before).update("f", "@@", " a", "-b", "+B", "+C", " c") == after


def test_crlf_lines_match_exactly(workspace):
    """Two equal CRLF lines are the exact pass's business: first one used, not refused as ambiguous."""
    files = workspace(f="a\r\na\r\n")

    changes = files.apply("*** Update File: f", "@@", "-a", "+A")

    assert files["f"] == "A\r\na\r\n"
    assert "2 places matched" in changes.report()


def test_context_keeps_its_own_blanks(workspace):
    assert workspace(f="\tif x:  \n\t\ty\n").update("f", "@@", " if x:", "-  y", "+\t\tz") == "\tif x:  \n\t\tz\n"


def test_context_keeps_its_own_punctuation(workspace):
    assert workspace(f="a \u2013 b\nc\n").update("f", "@@", " a - b", "-c", "+d") == "a \u2013 b\nd\n"


@pytest.mark.parametrize("target", ["f", "./f", "d/../f"])
def test_move_onto_itself_updates_in_place(workspace, target):
    files = workspace(f="a\n")

    changes = files.apply("*** Update File: f", f"*** Move to: {target}", "@@", "-a", "+A")

    assert files["f"] == "A\n"
    assert changes.summary().splitlines()[1:] == [f"M {target}"]


def test_move_onto_a_link_to_itself_updates_in_place(workspace):
    files = workspace(f="a\n")
    files.files["link"] = FileText(b"a\n", 0o644, target="f")

    changes = files.plan("*** Update File: f", "*** Move to: link", "@@", "-a", "+A")

    assert changes.operations == (WriteFile("f", b"A\n", 0o644),)


def test_move_keeps_the_mode(workspace):
    files = workspace()
    files.files["run.sh"] = FileText(b"a\n", 0o755)
    files.files["old.sh"] = FileText(b"o\n", 0o600)

    changes = files.plan("*** Update File: run.sh", "*** Move to: old.sh", "@@", " a")

    assert changes.operations == (RemoveFile("run.sh"), WriteFile("old.sh", b"a\n", 0o755))


def test_exact_match_at_several_places_uses_the_first_and_says_so(workspace):
    files = workspace(f="x\ny\nx\ny\n")

    changes = files.apply("*** Update File: f", "@@", "-x", "+X")

    assert files["f"] == "X\ny\nx\ny\n"
    assert changes.notes[0].startswith("f: 2 places matched, first used (line 1).")
    assert changes.report() == changes.summary() + f"Note: {changes.notes[0]}\n"


def test_exact_match_below_a_context_is_silent(workspace):
    assert workspace(f="c\nx\nx\n").plan("*** Update File: f", "@@ c", "-x", "+X").notes == ()


def test_tolerant_match_at_several_places_is_refused_with_line_numbers(workspace):
    files = workspace(f="  x\ny\n    x\n")

    with pytest.raises(AmbiguousMatch, match=r"2 places \(lines 1, 3\)"):
        files.apply("*** Update File: f", "@@", "-x", "+X")


def test_tolerant_context_at_several_places_is_refused_when_nothing_decides(workspace):
    files = workspace(f="  def m():\n    x\n  def m():\n    x\n")

    with pytest.raises(AmbiguousMatch, match=r"lines 1, 3"):
        files.apply("*** Update File: f", "@@ def m():", "-    x", "+    y")
    with pytest.raises(AmbiguousMatch):
        files.apply("*** Update File: f", "@@ def m():", "+    y")


def test_tolerant_context_at_several_places_is_fine_when_the_lines_decide(workspace):
    files = workspace(f="  def m():\n    x\n  def m():\n    y\n")

    assert files.update("f", "@@ def m():", "-    y", "+    z") == "  def m():\n    x\n  def m():\n    z\n"


def test_two_context_lines_are_nested(workspace):
    files = workspace(f="class A\n  def m\n    1\nclass B\n  def m\n    1\n")

    assert files.update("f", "@@ class B", "@@   def m", "-    1", "+    2").endswith("class B\n  def m\n    2\n")


def test_pure_addition_goes_below_its_context(workspace):
    assert workspace(f="a\nb\n").update("f", "@@ a", "+1", "+2") == "a\n1\n2\nb\n"


def test_pure_addition_with_end_of_file_goes_to_the_end(workspace):
    assert workspace(f="a\nb\n").update("f", "@@ a", "+1", "*** End of File") == "a\nb\n1\n"


def test_blank_last_lines_are_kept(workspace):
    assert workspace(f="a\nb\n\n\n").update("f", "@@", "-b", "+B") == "a\nB\n\n\n"
    assert workspace(f="a\n\n").update("f", "@@", "+z") == "a\n\nz\n"


def test_two_operations_on_one_path_are_applied_in_order(workspace):
    files = workspace(f="a\nb\n")

    changes = files.apply(
        "*** Update File: f",
        "@@",
        "-a",
        "+A",
        "*** Update File: f",
        "@@",
        "-A",
        "+AA",
        "*** Delete File: f",
        "*** Add File: f",
        "+new",
    )

    assert files["f"] == "new\n"
    assert changes.summary().splitlines()[1:] == ["A f", "M f", "M f", "D f"]


@pytest.mark.parametrize(
    ("lines", "after"),
    [
        (["@@", "-a", "+A"], "A\nb"),
        (["@@", "-a", "+A", " b"], "A\nb"),
        (["@@", "-b", "+B"], "a\nB\n"),
        (["@@", "+c"], "a\nb\nc\n"),
        (["@@", "-b"], "a\n"),
    ],
    ids=["other line", "as context", "last line", "after it", "removed"],
)
def test_missing_final_newline(workspace, lines, after):
    assert workspace(f="a\nb").update("f", *lines) == after


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "/workspace/../x", "/workspacex/f"])
def test_path_escapes_are_refused(workspace, path):
    files = workspace()

    for scope in (None, Scope(root="/workspace")):
        with pytest.raises(PathRefused):
            files.plan(f"*** Add File: {path}", "+x", scope=scope)


def test_link_that_leads_outside_is_refused_but_can_be_removed(workspace):
    files = workspace()
    files.files["link"] = FileText(b"", kind="outside_link")

    for operation in (["*** Update File: link", "@@", "-a"], ["*** Add File: link", "+x"]):
        with pytest.raises(PathRefused):
            files.plan(*operation)
    assert files.plan("*** Delete File: link").operations == (RemoveFile("link"),)


def test_hunks_that_change_the_same_line_are_refused(workspace):
    with pytest.raises(OverlappingHunks, match="line 3"):
        workspace(f="a\nb\nc\n").update("f", "@@", "-b", "-c", "+Q", "@@", "-c", "+D", "*** End of File")


def test_update_after_delete_is_refused(workspace):
    with pytest.raises(FileProblem, match="no such file"):
        workspace(f="a\n").apply("*** Delete File: f", "*** Update File: f", "@@", "-a", "+b")
