"""Which commands are patches, and which are left to the shell."""

import pytest

from patchyard.patch import PatchInvocation, intercept

PATCH = "*** Begin Patch\n*** Add File: a\n+$HOME `x`\n*** End Patch"


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        (["apply_patch", PATCH], None),
        (["/usr/bin/applypatch", PATCH], None),
        (f"apply_patch <<'EOF'\n{PATCH}\nEOF", None),
        (f'  applypatch  <<"END_1"\n{PATCH}\nEND_1\n\n', None),
        (f"apply_patch << PATCH\n{PATCH}\nPATCH", None),
        (f"cd sub/dir && apply_patch <<'EOF'\n{PATCH}\nEOF", "sub/dir"),
        (f"cd 'my dir' && apply_patch <<'EOF'\n{PATCH}\nEOF", "my dir"),
        (f'cd "my dir" && apply_patch <<EOF\n{PATCH}\nEOF', "my dir"),
        (["bash", "-lc", f"apply_patch <<'EOF'\n{PATCH}\nEOF"], None),
        (["/bin/sh", "-c", f"cd x && apply_patch <<'EOF'\n{PATCH}\nEOF"], "x"),
        (["zsh", "-l", "-c", f"apply_patch <<'EOF'\n{PATCH}\nEOF"], None),
    ],
)
def test_recognised(command, folder):
    assert intercept(command) == PatchInvocation(PATCH, folder)


@pytest.mark.parametrize("command", [PATCH, f"\n{PATCH}\n", [PATCH], ["bash", "-lc", PATCH]])
def test_patch_as_the_whole_command(command):
    assert intercept(command) == PatchInvocation(PATCH, bare=True)


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "",
        "apply_patch",
        "apply_patch < file",
        f"apply_patch <<'EOF' && ls\n{PATCH}\nEOF",
        f"apply_patch <<'EOF' | cat\n{PATCH}\nEOF",
        f"apply_patch <<'EOF'\n{PATCH}\nEOF\nls",
        f"apply_patch <<'EOF'\n{PATCH}\n",
        f"apply_patch <<-EOF\n{PATCH}\nEOF",
        f"apply_patch <<\"EOF'\n{PATCH}\nEOF",
        f"mkdir x; cd x && apply_patch <<'EOF'\n{PATCH}\nEOF",
        f"cd x; apply_patch <<'EOF'\n{PATCH}\nEOF",
        f"cd x y && apply_patch <<'EOF'\n{PATCH}\nEOF",
        f"cd $HOME && apply_patch <<'EOF'\n{PATCH}\nEOF",
        f"cd \"$HOME\" && apply_patch <<'EOF'\n{PATCH}\nEOF",
        f"cd ~ && apply_patch <<'EOF'\n{PATCH}\nEOF",
        f"FOO=1 apply_patch <<'EOF'\n{PATCH}\nEOF",
        f"my_apply_patch <<'EOF'\n{PATCH}\nEOF",
        ["apply_patch", PATCH, "more"],
        ["bash", "script.sh"],
        ["bash", "-x", "-c", f"apply_patch <<'EOF'\n{PATCH}\nEOF"],
        ["python", "-c", f"apply_patch <<'EOF'\n{PATCH}\nEOF"],
        [],
    ],
)
def test_left_to_the_shell(command):
    assert intercept(command) is None
