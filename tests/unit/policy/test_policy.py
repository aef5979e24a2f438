import pytest

from patchyard.policy import (
    PathClass,
    classify_write,
    decide_command,
    decide_patch,
    has_forced_rm,
    is_known_safe,
    resolve,
    split_script,
)
from patchyard.protocol.policies import (
    ApprovalMode,
    DangerFullAccess,
    ExternalSandbox,
    GranularApproval,
    ReadOnly,
    WorkspaceWrite,
)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("ls", (("ls",),)),
        ("ls -la 'a b' \"c d\"", (("ls", "-la", "a b", "c d"),)),
        ("a && b || c; d | e", (("a",), ("b",), ("c",), ("d",), ("e",))),
        ("a\n\nb\n", (("a",), ("b",))),
        ("a;", (("a",),)),
        ("rg 'x && y'", (("rg", "x && y"),)),
    ],
)
def test_plain_scripts_are_split(script, words):
    assert split_script(script) == words


@pytest.mark.parametrize(
    "script",
    [
        "a > b",
        "a $(b)",
        "a `b`",
        "a $B",
        "(a)",
        "a &",
        "a & b",
        "A=1 b",
        "a *.py",
        "a &&",
        "&& a",
        "a 'b",
        'a "$b"',
        "a ~",
        "",
        "a || || b",
        "a {b,c}",
        "a\rb",
    ],
)
def test_anything_else_is_not_understood(script):
    assert split_script(script) is None


@pytest.mark.parametrize(
    "script",
    [
        "ls",
        "cat a | head -5",
        "rg foo src && sed -n 1,20p a.py",
        "find . -name '*.py'",
        "pwd; whoami",
        "base64 a",
        "uniq a",
        "sed -n 5p a",
    ],
)
def test_known_safe(script):
    assert is_known_safe(script)


@pytest.mark.parametrize(
    "script",
    [
        "python a.py",
        "git status",
        "find . -delete",
        "find . -exec rm {} +",
        "find . -fprint0 x",
        "rg --pre evil x",
        "rg -z x",
        "rg --search-zip x",
        "base64 -o out in",
        "base64 --output=x in",
        "sed -i s/a/b/ f",
        "sed -n 1,20p a b c",
        "ls > x",
        "ls; touch a",
        "uniq a b",
        "/tmp/ls",
        "echo $(touch a)",
    ],
)
def test_not_known_safe(script):
    assert not is_known_safe(script)


@pytest.mark.parametrize(
    "script",
    [
        "rm -f a",
        "rm -rf a",
        "rm -r --force a",
        "rm a -f",
        "/bin/rm -fr a",
        "sudo rm -rf a",
        "sudo -u root rm -rf a",
        "ls && rm -rf a",
        "find . | xargs rm -f",
        "if true; then rm -rf a; fi",
        "for f in a b; do rm -f $f; done",
        "echo $(rm -rf a)",
        "echo `rm -rf a`",
        "bash -c 'rm -rf a'",
        "(cd x; rm -rf y)",
        "{ rm -rf a; }",
        "X=1 rm -rf a",
        "env -i rm -rf a",
        "'rm' -rf a",
        "r\\m -rf a",
        "rm \\\n -rf a",
        "true & rm -rf a",
        "eval 'rm -rf a'",
        "eval rm -rf a",
        "timeout 5 rm -rf a",
        "setsid rm -rf a",
        "time -p rm -rf a",
        "find . -name a -exec rm -rf {} +",
        "trap 'rm -rf a' EXIT",
        "rm -r --fo a",
    ],
)
def test_forced_rm_is_found(script):
    assert has_forced_rm(script)


@pytest.mark.parametrize(
    "script",
    [
        "rm a",
        "rm -r a",
        "rm -- -f",
        "echo 'rm -rf a'",
        'echo "rm -rf a"',
        "$cmd -rf a",
        "git rm --cached a",
        "ls # rm -rf a",
        "grep -f rm x",
        "terraform -f",
        "printf rm",
        "find . -name rm -print",
        "time -p make",
    ],
)
def test_other_commands_are_not_forced_rm(script):
    assert not has_forced_rm(script)


RO, WW, FULL, EXT = ReadOnly(), WorkspaceWrite(), DangerFullAccess(), ExternalSandbox()
UNTRUSTED, ON_REQUEST, NEVER = ApprovalMode.UNTRUSTED, ApprovalMode.ON_REQUEST, ApprovalMode.NEVER
ALL = GranularApproval(sandbox_approval=True, rules=True, mcp_elicitations=True)
NO_SANDBOX = GranularApproval(sandbox_approval=False, rules=True, mcp_elicitations=True)

TABLE = [
    # approval, sandbox, ls, write, dangerous, escalated, patch inside, patch outside
    (ON_REQUEST, RO, "run", "run", "ask", "ask", "ask", "ask"),
    (ON_REQUEST, WW, "run", "run", "ask", "ask", "run", "ask"),
    (ON_REQUEST, FULL, "run", "run", "ask", "run", "run", "run"),
    (UNTRUSTED, RO, "run", "ask", "ask", "ask", "ask", "ask"),
    (UNTRUSTED, WW, "run", "ask", "ask", "ask", "ask", "ask"),
    (UNTRUSTED, FULL, "run", "ask", "ask", "ask", "ask", "ask"),
    (NEVER, RO, "run", "run", "reject", "reject", "reject", "reject"),
    (NEVER, WW, "run", "run", "reject", "reject", "run", "reject"),
    (NEVER, FULL, "run", "run", "reject", "reject", "run", "run"),
    (NEVER, EXT, "run", "run", "reject", "reject", "run", "run"),
    (ALL, RO, "run", "run", "ask", "ask", "ask", "ask"),
    (ALL, WW, "run", "run", "ask", "ask", "run", "ask"),
    (NO_SANDBOX, RO, "run", "run", "reject", "reject", "reject", "reject"),
    (NO_SANDBOX, WW, "run", "run", "reject", "reject", "run", "reject"),
]


@pytest.mark.parametrize(("approval", "sandbox", "ls", "write", "dangerous", "escalated", "inside", "outside"), TABLE)
def test_the_table(approval, sandbox, ls, write, dangerous, escalated, inside, outside):
    def command(script, **fields):
        return decide_command(script, approval=approval, sandbox=sandbox, **fields).action

    def patch(path):
        return decide_patch(classify_write(path, cwd="/workspace", sandbox=sandbox), approval=approval).action

    assert command("ls") == ls
    assert command("echo x > f.txt") == write
    assert command("rm -rf zz") == dangerous
    assert command("touch a", escalate=True) == escalated
    assert patch("a.py") == inside
    assert patch("/root/a") == outside


def test_refusals_and_questions_have_a_reason():
    assert decide_command("rm -rf x", approval=NEVER, sandbox=FULL).reason
    assert decide_command("make", approval=UNTRUSTED, sandbox=WW).reason


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a/b.py", PathClass.WRITABLE),
        ("/workspace/a", PathClass.WRITABLE),
        ("a/../../x", PathClass.OUTSIDE),
        ("/workspace2/a", PathClass.OUTSIDE),
        (".git/config", PathClass.PROTECTED),
        ("sub/.git/config", PathClass.PROTECTED),
        (".codex/x", PathClass.PROTECTED),
        (".github/x", PathClass.WRITABLE),
        ("/extra/a", PathClass.WRITABLE),
        ("/extra/.aws/a", PathClass.PROTECTED),
    ],
)
def test_paths(path, kind):
    assert classify_write(path, cwd="/workspace", sandbox=WorkspaceWrite(writable_roots=("/extra",))) is kind


def test_resolve():
    assert resolve("../x", "/a/b") == "/a/x"
    assert resolve("/x/./y", "/a") == "/x/y"
