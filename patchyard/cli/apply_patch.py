"""`patchyard apply-patch`: apply a patch to the current folder."""

import sys
from pathlib import Path
from typing import NoReturn

import click

from patchyard.patch import PatchError, PatchSyntaxError, Scope, parse, plan

from ._local_files import LocalFiles

_USAGE_ERROR = 2
_REFUSED = 1
_INTERRUPTED = 130

_NO_PATCH = (
    "Give the patch as the argument or on standard input:\n  patchyard apply-patch PATCH\n  patchyard apply-patch < FILE"
)


@click.command("apply-patch")
@click.argument("patch", required=False)
def apply_patch(patch: str | None) -> None:
    """Apply PATCH (or standard input) to the files of the current folder.

    All of it or nothing: the patch is checked against every file before the first one is written. Paths outside of the current
    folder are refused. Exit codes: 0 applied, 1 refused, 2 no patch given, 130 interrupted.
    """
    text = _from_stdin() if patch is None else patch
    files = LocalFiles(Path.cwd())
    try:
        report = _apply(text, files)
    except PatchError as error:
        _stop(str(error), _REFUSED)
    except KeyboardInterrupt:
        _stop(f"Interrupted. {'The patch was applied.' if files.applied else 'Nothing was changed.'}", _INTERRUPTED)
    sys.stdout.buffer.write(report.encode())
    sys.stdout.buffer.flush()


def _from_stdin() -> str:
    data = sys.stdin.buffer.read()
    if not data:
        _stop(_NO_PATCH, _USAGE_ERROR)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        _stop(f"The patch on standard input is not UTF-8 text (byte {error.start}). Nothing was changed.", _REFUSED)


def _apply(text: str, files: LocalFiles) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of an argument that are not UTF-8 arrive as lone surrogates
        raise PatchSyntaxError("The patch is not UTF-8 text. Nothing was changed.") from None
    changes = plan(parse(text), files.read, scope=Scope(root=str(files.root)))
    files.apply(changes.operations)
    return changes.report()


def _stop(message: str, code: int) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(code)
