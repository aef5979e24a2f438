"""Commands of a real agent in a real box run `apply_patch`: what each policy lets them change."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from patchyard.adapters.sandbox import Box
from patchyard.protocol.policies import ReadOnly, SandboxPolicy, WorkspaceWrite
from patchyard.protocol.tasks import HookEvent, HookSpec
from patchyard.testing.builders import response, says, shell, spec
from patchyard.testing.harness import AgentHarness
from tests.waiting import WAIT_S
from workers.parts import SystemClock

from .conftest import DockerBackend, engine_boxes

pytestmark = pytest.mark.engine

LATER = "mkdir -p pkg; cd pkg && apply_patch <<'EOF'\n{}EOF\necho code $?"


def adds(path: str, text: str = "new") -> str:
    return f"*** Begin Patch\n*** Add File: {path}\n+{text}\n*** End Patch\n"


class OneBox:
    """SandboxSource of a box that runs already."""

    def __init__(self, box: Box) -> None:
        self._box = box

    def prepare(self) -> None:
        """See SandboxSource."""

    async def get(self) -> Box:
        """See SandboxSource."""
        return self._box

    async def instructions(self, folder: str = "") -> Sequence[tuple[str, str]]:
        """See SandboxSource."""
        return ()


def outputs(
    backend: DockerBackend, scripts: Sequence[str], *, policy: SandboxPolicy, box_policy: SandboxPolicy, **fields: Any
) -> Any:
    """The harness after a turn that ran the scripts, one after another."""

    async def main() -> AgentHarness:
        engine = engine_boxes()
        try:
            box = await engine.start(replace(backend.spec, policy=box_policy))
            steps = [response(shell(script, f"c{number}")) for number, script in enumerate(scripts)]
            clock: Any = SystemClock()
            h = AgentHarness(
                [*steps, says("ok")], spec=spec(approval="never", sandbox=policy, **fields), clock=clock, linger_s=0
            )
            h.source = OneBox(box)  # type: ignore[assignment]
            h.session = h.new_session()
            h.submit()
            async with asyncio.timeout(WAIT_S):
                await h.session.run()
            assert h.session._thread.journal.open_items == {}
            return h
        finally:
            await engine.close()

    return asyncio.run(main())


def patches(h: AgentHarness) -> list[tuple[str, str]]:
    return [(e.item.id, e.item.status) for e in h.of_type("item_completed") if e.item.type == "file_change"]


def test_a_writable_workspace_is_patched_from_any_command(backend: DockerBackend) -> None:
    python = (
        "python3 - <<'EOF'\nimport subprocess\n"
        f"subprocess.run(['applypatch'], input={adds('b.txt')!r}, text=True, cwd='pkg', check=True)\nEOF"
    )
    h = outputs(backend, [LATER.format(adds("a.txt")), python], policy=WorkspaceWrite(), box_policy=WorkspaceWrite())
    assert "Success. Updated the following files:\nA a.txt\ncode 0\n" in h.model.outputs()["c0"]
    assert (backend.workspace / "pkg/a.txt").read_text() == (backend.workspace / "pkg/b.txt").read_text() == "new\n"
    assert patches(h) == [("c0_patch_1", "completed"), ("c1_patch_1", "completed")]


@pytest.mark.parametrize("box_policy", [ReadOnly(), WorkspaceWrite()], ids=["read-only box", "read-only command"])
def test_a_read_only_command_is_refused(backend: DockerBackend, box_policy: SandboxPolicy) -> None:
    script = f"cd /workspace; true; apply_patch <<'EOF'\n{adds('a.txt')}EOF\necho code $?"
    h = outputs(backend, [script], policy=ReadOnly(), box_policy=box_policy)
    assert "code 1\n" in h.model.outputs()["c0"]
    assert list(backend.workspace.glob("*.txt")) == []
    assert patches(h) == [("c0_patch_1", "declined")]


@pytest.mark.parametrize(
    "path", ["/etc/new", "../../new", "../.git/config", "/workspace/.git/hooks/post-commit", "../.codex/x"]
)
def test_outside_and_protected_places_are_refused_and_nothing_of_the_patch_is_done(backend: DockerBackend, path: str) -> None:
    both = adds("a.txt").replace("*** End Patch\n", "") + adds(path).replace("*** Begin Patch\n", "")
    h = outputs(backend, [LATER.format(both)], policy=WorkspaceWrite(), box_policy=WorkspaceWrite())
    assert "code 1\n" in h.model.outputs()["c0"]
    assert list(backend.workspace.rglob("a.txt")) == []
    assert patches(h) == [("c0_patch_1", "declined")]


def test_patches_at_once_are_done_one_after_another(backend: DockerBackend) -> None:
    count = 12
    (backend.workspace / "list.txt").write_text("end\n")
    (backend.workspace / "list.txt").chmod(0o666)
    one = "*** Begin Patch\n*** Update File: list.txt\n@@\n+line $i\n end\n*** End Patch\n"
    script = f"for i in $(seq {count}); do printf '%s' \"{one}\" | apply_patch & done; wait"
    h = outputs(backend, [script], policy=WorkspaceWrite(), box_policy=WorkspaceWrite())
    lines = (backend.workspace / "list.txt").read_text().splitlines()
    assert sorted(lines) == sorted(["end", *(f"line {number}" for number in range(1, count + 1))])
    assert [status for _, status in patches(h)] == ["completed"] * count


def test_hooks_run_beside_the_command_that_waits_for_its_patch(backend: DockerBackend) -> None:
    """Nothing waits for itself: the hook runs in the box whose command waits, and its own patch is refused at once."""
    guard = "read -r told; case $told in *secret*) echo not this >&2; exit 2;; esac; printf '' | apply_patch; echo again $?"
    hooks = {HookEvent.PRE_TOOL_USE: (HookSpec(matcher="apply_patch", command=guard, timeout_s=30),)}
    scripts = [LATER.format(adds(path)) for path in ("a.txt", "secret.txt")]
    h = outputs(backend, scripts, policy=WorkspaceWrite(), box_policy=WorkspaceWrite(), hooks=hooks)
    assert "A a.txt\ncode 0\n" in h.model.outputs()["c0"]
    assert "Command blocked by PreToolUse hook: not this. Nothing was changed.\ncode 1\n" in h.model.outputs()["c1"]
    assert [path.name for path in backend.workspace.rglob("*.txt")] == ["a.txt"]
    assert [e.outcome for e in h.of_type("hook_completed")] == ["ok", "blocked"]
    assert patches(h) == [("c0_patch_1", "completed")]
