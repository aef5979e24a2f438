"""What a verified patch tells: operations, file updates, paths; and what a refusal tells."""

import pytest

from patchyard.patch import (
    ContextNotFound,
    FileProblem,
    FileText,
    LinesNotFound,
    PathRefused,
    RemoveFile,
    Scope,
    TouchedPath,
    WriteFile,
    attempted_updates,
    parse,
    touched_paths,
)
from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.items import FileUpdate


def test_operations_are_the_net_effect_with_removals_first(workspace):
    files = workspace(f="a\n", same="s\n", old="o\n")

    changes = files.plan(
        "*** Add File: tmp",
        "+x",
        "*** Update File: old",
        "*** Move to: new",
        "@@",
        " o",
        "*** Update File: same",
        "@@",
        " s",
        "*** Update File: f",
        "@@",
        "-a",
        "+A",
        "*** Delete File: tmp",
    )

    assert changes.operations == (RemoveFile("old"), WriteFile("new", b"o\n", 0o644), WriteFile("f", b"A\n", 0o644))


def test_a_file_may_become_a_folder_but_a_folder_is_never_replaced(workspace):
    files = workspace(f="a\n")

    assert files.plan("*** Delete File: f", "*** Add File: f/g", "+x").operations == (
        RemoveFile("f"),
        WriteFile("f/g", b"x\n", None),
    )
    with pytest.raises(FileProblem, match="is a file, not a folder"):
        files.plan("*** Add File: n", "+x", "*** Add File: n/g", "+x")
    with pytest.raises(FileProblem, match="folder"):
        files.plan("*** Add File: n/g", "+x", "*** Add File: n", "+x")
    files.files["d"] = FileText(b"", kind="folder")
    for operation in (["*** Add File: d"], ["*** Delete File: d"], ["*** Update File: d", "@@", "-a"]):
        with pytest.raises(FileProblem, match="folder"):
            files.plan(*operation)


def test_links_are_written_through_and_removed_themselves(workspace):
    files = workspace(real="a\n")
    files.files["link"] = FileText(b"a\n", 0o644, target="real")

    changes = files.plan("*** Update File: link", "@@", "-a", "+b", "*** Update File: real", "@@", "-b", "+c")

    assert changes.operations == (WriteFile("real", b"c\n", 0o644),)
    assert files.plan("*** Delete File: link").operations == (RemoveFile("link"),)


def test_file_updates_with_unified_diffs(workspace):
    files = workspace(f="".join(f"{i}\n" for i in range(1, 21)), gone="x\ny", bin=b"\xff")

    changes = files.plan(
        "*** Update File: ./f",
        "*** Move to: g",
        "@@",
        "-2",
        "+two",
        "@@",
        " 19",
        "+new",
        "*** Add File: a",
        "+1",
        "*** Delete File: gone",
        "*** Delete File: bin",
    )

    assert changes.file_updates() == [
        FileUpdate(
            path="f",
            kind="update",
            move_path="g",
            diff="@@ -1,5 +1,5 @@\n 1\n-2\n+two\n 3\n 4\n 5\n@@ -17,4 +17,5 @@\n 17\n 18\n 19\n+new\n 20\n",
        ),
        FileUpdate(path="a", kind="add", diff="1\n"),
        FileUpdate(path="gone", kind="delete", diff="x\ny"),
        FileUpdate(path="bin", kind="delete", diff="\ufffd"),
    ]
    assert changes.summary() == "Success. Updated the following files:\nA a\nM g\nD gone\nD bin\n"


@pytest.mark.parametrize(
    ("before", "lines", "diff"),
    [
        ("a", ["@@", "+b"], "@@ -1 +1,2 @@\n-a\n\\ No newline at end of file\n+a\n+b\n"),
        ("a\nb", ["@@", "-a", "+A"], "@@ -1,2 +1,2 @@\n-a\n+A\n b\n\\ No newline at end of file\n"),
        ("a", ["@@", "-a", "+a"], "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"),
        ("", ["@@", "+b"], "@@ -0,0 +1 @@\n+b\n"),
        ("a\n", ["@@", "-a"], "@@ -1 +0,0 @@\n-a\n"),
        ("a\r\nb\r\n", ["@@", "-b", "+c"], "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n"),
        ("a\nb\n", ["@@", "-a", "-b", "+a", "+c"], "@@ -1,2 +1,2 @@\n a\n-b\n+c\n"),
        ("a\n", ["@@", " a"], ""),
    ],
)
def test_unified_diff_details(workspace, before, lines, diff):
    assert workspace(f=before).plan("*** Update File: f", *lines).file_updates()[0].diff == diff


def test_missing_lines_show_the_nearest_ones_with_numbers(workspace):
    files = workspace(f="".join(f"line {i}\n" for i in range(40)) + "def handler(request):\n    return render(request.name)\n")

    with pytest.raises(LinesNotFound) as caught:
        files.plan("*** Update File: f", "@@", " def handler(request):", "-    return render(request.title)", "+x")

    assert caught.value.info.message == (
        "f: these lines were not found:\n"
        "  def handler(request):\n"
        "      return render(request.title)\n"
        "Read the file again and copy the lines as they are now.\n"
        "Nearest lines in the file:\n"
        "  41 | def handler(request):\n"
        "  42 |     return render(request.name)"
    )
    assert caught.value.info.code is ErrorCode.CONFLICT
    assert caught.value.info.details == {"path": "f", "line": "3"}


def test_missing_context_shows_a_similar_line(workspace):
    with pytest.raises(ContextNotFound, match=r"(?s)`@@ def handle\(req\):`.*1 \| def handler\(request\):"):
        workspace(f="def handler(request):\n").plan("*** Update File: f", "@@ def handle(req):", "+x")


def test_lines_above_the_cursor_are_pointed_out(workspace):
    with pytest.raises(LinesNotFound, match=r"(?s)below line 2.*above the place where the search started.*1 \| first"):
        workspace(f="first\nsecond\n").plan("*** Update File: f", "@@", "-second", "+2", "@@", "-first", "+1")


def test_messages_stay_short(workspace):
    with pytest.raises(LinesNotFound) as caught:
        workspace(f="y" * 9000 + "\n").plan("*** Update File: f", "@@", *("-" + "x" * 9000 for _ in range(500)))

    assert len(str(caught.value)) < 4000


def test_not_text(workspace):
    with pytest.raises(FileProblem, match="not UTF-8 text"):
        workspace(f=b"\xff\n").plan("*** Update File: f", "@@", "-a")


def test_scope_paths():
    scope = Scope(root="/workspace", cwd="pkg", extra=("/tmp",))

    assert [scope.resolve(p) for p in ("a", "./b/../c", "../x", "/workspace/y", "/tmp/z", "../../tmp/z")] == [
        "pkg/a",
        "pkg/c",
        "x",
        "y",
        "/tmp/z",
        "/tmp/z",
    ]
    assert scope.inside("sub").resolve("a") == "pkg/sub/a"
    assert scope.inside("/workspace").resolve("a") == "a"
    for path in ("../../etc", "/tmp", "/", ".." + "/.." * 9, "..", "a\0b"):
        with pytest.raises(PathRefused):
            scope.resolve(path)
    for folder in ("/tmp/x", "/etc"):
        with pytest.raises(PathRefused):
            scope.inside(folder)


def test_touched_paths():
    patch = parse(
        "*** Begin Patch\n*** Add File: a\n*** Update File: ./b\n*** Move to: c\n x\n*** Update File: d\n x\n"
        "*** Delete File: e\n*** End Patch"
    )

    assert touched_paths(patch) == (
        TouchedPath("a", "a", "write"),
        TouchedPath("./b", "b", "delete"),
        TouchedPath("c", "c", "write"),
        TouchedPath("d", "d", "write"),
        TouchedPath("e", "e", "delete"),
    )


def test_what_a_patch_wanted_is_told_without_a_file() -> None:
    patch = parse(
        "*** Begin Patch\n*** Add File: new.py\n+x\n*** Delete File: gone.py\n*** Update File: /etc/passwd\n*** Move to: b.py\n"
        "@@ def f():\n@@ if x:\n-old\n+new\n@@\n-two\n*** End Patch"
    )
    told = attempted_updates(patch, Scope("/workspace", cwd="pkg"))
    assert told == [
        FileUpdate(path="pkg/new.py", kind="add", diff="x\n"),
        FileUpdate(path="pkg/gone.py", kind="delete", diff=""),
        FileUpdate(
            path="/etc/passwd", kind="update", move_path="pkg/b.py", diff="@@ def f():\n@@ if x:\n-old\n+new\n@@\n-two\n"
        ),
    ]


@pytest.mark.parametrize(
    ("chunk", "after"),
    [
        ([" a", "+", "-a", "-a", "-"], "a\n"),
        ([" a", "+b", "+", "-a", "-a", "-"], "a\nb\n"),
        ([" a", "-a", "-a", "-", "+"], "a\n"),
        ([" a", "-a", "-a", "-", "+c"], "a\nc\n"),
        ([" a", "-a", "-a", "+c", " "], "a\nc\n"),
    ],
)
def test_a_blank_last_line_that_the_file_does_not_have_goes_on_both_sides(workspace, chunk, after):
    """As the real program does, wherever in the patch the new text's last line stands."""
    assert workspace(f="a\na\na").update("f", "@@", *chunk, "*** End of File") == after
