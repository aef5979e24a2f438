"""Hooks of tenants in patchyard.toml: who gets which, and what is said about mistakes."""

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError

from patchyard.protocol.tasks import HookEvent, HookSpec
from patchyard.settings import load
from patchyard.settings_file import line_of, problems
from workers.checks import hooks
from workers.doctor import main

TOML = """\
api_port = 7400

[hooks.no_push]
event = "PreToolUse"
matcher = "Bash"
command = "/opt/no-push"

[hooks.style]
event = "SessionStart"
command = "cat /opt/style.md"
tenants = ["acme"]
timeout_s = 5

[hooks.last]
event = "PreToolUse"
command = "/opt/last"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATCHYARD_HOME", str(tmp_path))
    (tmp_path / "patchyard.toml").write_text(TOML)
    return tmp_path


def test_a_tenant_gets_its_own_hooks_and_those_of_all_in_the_order_of_the_file(home: Path) -> None:
    before = (HookSpec(matcher="Bash", command="/opt/no-push"), HookSpec(command="/opt/last"))
    style = (HookSpec(command="cat /opt/style.md", timeout_s=5),)
    assert load().hooks_of("acme") == {HookEvent.PRE_TOOL_USE: before, HookEvent.SESSION_START: style}
    assert load().hooks_of("other") == {HookEvent.PRE_TOOL_USE: before}


def test_the_doctor_knows_them(home: Path) -> None:
    (told,) = asyncio.run(hooks(load()))
    assert told.status == "ok"
    assert told.detail == (
        "no_push (PreToolUse of Bash, all tenants); style (SessionStart, acme); last (PreToolUse, all tenants)"
    )


@pytest.mark.parametrize(
    ("written", "instead", "line", "words"),
    [
        ('event = "PreToolUse"', 'event = "PreTool"', 4, "Input should be 'SessionStart'"),
        ('matcher = "Bash"', 'matcher = "("', 5, "not a regular expression"),
        ('matcher = "Bash"', 'matcher = "(?!Bash).*"', 5, "no look-around"),
        ('command = "/opt/no-push"\n', "", 3, "Field required"),
        ('command = "/opt/no-push"', 'comand = "/opt/no-push"', 6, "not permitted"),
        ('tenants = ["acme"]', 'tenants = ["Acme!"]', 11, "pattern"),
        ("timeout_s = 5", "timeout_s = 5000", 12, "less than or equal to 600"),
        ('event = "SessionStart"', 'matcher = "x"\nevent = "Stop"', 8, "nothing to match at Stop"),
    ],
)
def test_a_mistake_is_told_with_file_and_line(
    home: Path, capsys: pytest.CaptureFixture[str], written: str, instead: str, line: int, words: str
) -> None:
    (home / "patchyard.toml").write_text(TOML.replace(written, instead, 1))
    with pytest.raises(ValidationError) as caught:
        load()
    assert f"{home}/patchyard.toml:{line}" in [problem.place for problem in problems(caught.value)]
    assert main([]) == 1
    report = capsys.readouterr().out
    assert words in report
    assert f"({home}/patchyard.toml:{line})\n      -> Correct that line." in report


def test_what_the_environment_says_is_not_looked_for_in_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHYARD_API_PORT", "many")
    with pytest.raises(ValidationError) as caught:
        load()
    assert [problem.place for problem in problems(caught.value)] == [None]


def test_a_file_that_is_no_toml_is_a_finding_of_the_doctor(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "patchyard.toml").write_text("[hooks.no_push\n")
    assert main([]) == 1
    assert "FAIL  settings: patchyard.toml: Expected" in capsys.readouterr().out


def test_lines_of_quoted_names_dotted_keys_and_tables_in_tables() -> None:
    text = '[a."b c"]\nx.y = 1\n[[d]]\nz = 2\n[a."b c".e]\nf = 3\n'
    assert line_of(text, ["a", "b c", "x", "y"]) == 2
    assert line_of(text, ["a", "b c", "missing"]) == 1
    assert line_of(text, ["a", "b c", "e", "f"]) == 6
    assert line_of(text, ["d", "z"]) == 4
    assert line_of(text, ["nothing"]) is None
