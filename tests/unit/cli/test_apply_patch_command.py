"""`patchyard apply-patch` on real files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from patchyard.cli import _local_files
from patchyard.cli._local_files import LocalFiles
from patchyard.cli.apply_patch import apply_patch
from patchyard.patch import FileProblem, RemoveFile, WriteFile
from tests.waiting import PROCESS_S


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def run(*lines: str, stdin: bool = False) -> Result:
    patch = "\n".join(["*** Begin Patch", *lines, "*** End Patch"])
    return CliRunner().invoke(apply_patch, [] if stdin else [patch], input=patch if stdin else None)


def tree(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("stdin", [False, True])
def test_patch_from_argument_or_standard_input(work, stdin):
    result = run("*** Add File: d/a", "+x", stdin=stdin)

    assert (result.exit_code, result.stdout) == (0, "Success. Updated the following files:\nA d/a\n")
    assert tree(work) == {"d/a": "x\n"}


def test_usage_errors(work):
    runner = CliRunner()

    assert runner.invoke(apply_patch, [], input="").exit_code == 2
    assert runner.invoke(apply_patch, ["a", "b"]).exit_code == 2
    assert runner.invoke(apply_patch, [""]).exit_code == 1
    not_text = runner.invoke(apply_patch, [], input=b"\xff\xfe")
    assert (not_text.exit_code, "not UTF-8" in not_text.stderr) == (1, True)
    assert runner.invoke(apply_patch, ["\udcff"]).exit_code == 1


def test_a_link_out_of_the_folder_is_refused(work, tmp_path):
    (tmp_path / "secret").write_text("s\n")
    (work / "link").symlink_to(tmp_path / "secret")
    (work / "up").symlink_to(tmp_path)

    for lines in (
        ["*** Update File: link", "@@", "-s", "+t"],
        ["*** Add File: link", "+t"],
        ["*** Add File: up/new", "+t"],
        ["*** Delete File: up/secret"],
        ["*** Add File: ok", "+t", "*** Update File: up/secret", "@@", "-s", "+t"],
    ):
        result = run(*lines)
        assert result.exit_code == 1, lines
        assert "Nothing was changed" in result.stderr
        assert str(tmp_path) not in result.stderr
    assert (tmp_path / "secret").read_text() == "s\n"
    assert sorted(os.listdir(work)) == ["link", "up"]
    assert run("*** Delete File: link").exit_code == 0
    assert not (work / "link").is_symlink()


def test_links_inside_are_followed(work):
    (work / "real").write_text("a\n")
    (work / "link").symlink_to("real")
    (work / "dangling").symlink_to("later")

    assert run("*** Update File: link", "@@", "-a", "+b", "*** Add File: dangling", "+new").exit_code == 0

    assert (work / "link").is_symlink()
    assert tree(work) == {"real": "b\n", "link": "b\n", "dangling": "new\n", "later": "new\n"}


def test_modes(work):
    (work / "run.sh").write_text("a\n")
    (work / "run.sh").chmod(0o750)
    before = os.umask(0o027)
    try:
        assert (
            run("*** Update File: run.sh", "*** Move to: bin/run", "@@", "-a", "+b", "*** Add File: new", "+x").exit_code == 0
        )
    finally:
        os.umask(before)

    assert oct((work / "bin/run").stat().st_mode) == "0o100750"
    assert oct((work / "new").stat().st_mode) == "0o100640"


def test_a_file_in_place_of_a_folder_is_named(work):
    (work / "f").write_text("x\n")

    result = run("*** Add File: f/g", "+x")

    assert (result.exit_code, result.stderr) == (1, "f/g: a part of this path is a file, not a folder. Choose another path.\n")


@pytest.mark.parametrize("failing", range(3))
def test_a_failing_rename_undoes_everything(work, monkeypatch, failing):
    for name in ("changed", "gone"):
        (work / name).write_text(f"{name}\n")
    before = tree(work)
    operations = (
        RemoveFile("gone"),
        WriteFile("changed", b"new\n", 0o644),
        WriteFile("gone/inside/file", b"x\n", None),
        WriteFile("deep/er/file", b"y\n", None),
    )
    replaced = []
    replace = Path.replace

    def fail_at(path: Path, target: Path) -> Path:
        if path.name.endswith(".tmp") and len(replaced) == failing:
            replaced.append(path)
            raise OSError(28, "No space left on device", str(target))
        replaced.append(path)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fail_at)
    with pytest.raises(FileProblem, match=r"no space left on device\)\. Nothing was changed"):
        LocalFiles(work).apply(operations)

    assert tree(work) == before
    assert sorted(os.listdir(work)) == ["changed", "gone"]


def test_a_failing_write_leaves_no_spare_file(work, monkeypatch):
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_local_files.os, "fchmod", full)
    (work / "f").write_text("a\n")

    result = run("*** Add File: n/new", "+x", "*** Update File: f", "@@", "-a", "+b")

    assert result.exit_code == 1
    assert tree(work) == {"f": "a\n"}


_INTERRUPTED = """
import os, signal, sys
import patchyard.cli._local_files as files
from patchyard.cli.apply_patch import apply_patch
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
def interrupt_first(function):
    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return function(*arguments)
    return interrupted
if sys.argv[1] == "reading":
    files.LocalFiles.read = interrupt_first(files.LocalFiles.read)
elif sys.argv[1] == "staging":
    files._spare_name = interrupt_first(files._spare_name)
else:
    files.Path.replace = interrupt_first(files.Path.replace)
apply_patch(["*** Begin Patch\\n*** Add File: a\\n+1\\n*** Add File: b\\n+2\\n*** End Patch"])
"""


@pytest.mark.parametrize(
    ("moment", "files", "told"),
    [
        ("reading", {}, "Interrupted. Nothing was changed.\n"),
        ("staging", {"a": "1\n", "b": "2\n"}, "Interrupted. The patch was applied.\n"),
        ("renaming", {"a": "1\n", "b": "2\n"}, "Interrupted. The patch was applied.\n"),
    ],
)
def test_an_interrupt_leaves_all_or_nothing_and_says_which(work, moment, files, told):
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, moment],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
    )

    assert (done.returncode, done.stderr) == (130, told)
    assert tree(work) == files
