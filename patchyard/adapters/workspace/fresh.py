"""Lays a patch and an overlay over an untouched base, inside a box: the host itself applies and unpacks nothing."""

from patchyard.agent.ports import Sandbox
from patchyard.protocol.policies import DangerFullAccess

from .checkout import GIT_DIR, WORKSPACE
from .diff import BOX_PATH, run_in_box
from .errors import DiskFull, PatchRefused

_TIMEOUT_S = 300.0
_FREE = DangerFullAccess()
"""The box is fresh and has no network: nothing in it needs protection from what is verified."""


async def lay_patch(sandbox: Sandbox, patch: bytes) -> None:
    """`git apply --binary` in the box. PatchRefused tells what does not fit; DiskFull; SandboxError when the box is lost."""
    if not patch:
        return
    # Git itself refuses patches that would leave the tree.
    argv = ("git", "-c", "core.hooksPath=/dev/null", "apply", "--binary", "--whitespace=nowarn", "-")
    env = {
        "PATH": BOX_PATH,
        "HOME": "/tmp",  # noqa: S108 - inside the box
        "LC_ALL": "C",
        "GIT_DIR": GIT_DIR,
        "GIT_WORK_TREE": WORKSPACE,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
    }
    result = await run_in_box(sandbox, argv, env=env, policy=_FREE, stdin=patch, timeout_s=_TIMEOUT_S)
    if result.status.code != 0:
        said = result.output.decode("utf-8", "replace").strip()
        if "No space left on device" in said:
            raise DiskFull("the patch was applied in the verification box")
        raise PatchRefused(f"The patch does not apply to the base: {said[-800:] or 'git gave no reason'}")


async def lay_overlay(sandbox: Sandbox, archive: bytes) -> None:
    """Unpack an overlay (tar, also compressed) over the tree, in the box. PatchRefused tells why it can't be unpacked."""
    argv = ("/bin/sh", "-c", f"cat > {_OVERLAY} && tar -x --no-same-owner -f {_OVERLAY} -C {WORKSPACE} && rm {_OVERLAY}")
    env = {"PATH": BOX_PATH, "HOME": "/tmp", "LC_ALL": "C"}  # noqa: S108 - inside the box
    result = await run_in_box(sandbox, argv, env=env, policy=_FREE, stdin=archive, timeout_s=_TIMEOUT_S)
    if result.status.code != 0:
        said = result.output.decode("utf-8", "replace").strip()
        if "No space left on device" in said:
            raise DiskFull("the overlay was unpacked in the verification box")
        raise PatchRefused(
            f"The verify overlay can't be unpacked: {said[-800:]}. Send a tar archive (gzip, bzip2 or xz are fine)."
        )


_OVERLAY = "/tmp/.patchyard-overlay"  # noqa: S108 - inside the box
