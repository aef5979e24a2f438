"""The container that a box asks the engine for, and what a policy means."""

import json
from pathlib import Path

import pytest

from patchyard.adapters.sandbox import BadCommand, BoxLabels, BoxMount, BoxRefused, BoxSpec, Confinement
from patchyard.adapters.sandbox._confinement import place, policy_records, seccomp_profile, writable_roots
from patchyard.adapters.sandbox._engine import EngineAddress
from patchyard.adapters.sandbox._spec import plan
from patchyard.protocol.policies import DangerFullAccess, ExternalSandbox, ReadOnly, SandboxPolicy, WorkspaceWrite

LABELS = BoxLabels(tenant="t", thread="th", turn="tu", worker="w", lease_until_ms=5)
HELLO = {
    "protocol": 1,
    "pid": 1,
    "uid": 1000,
    "gid": 1000,
    "cap_eff": "0000000000000000",
    "cap_bnd": "0000000000000000",
    "no_new_privs": "1",
    "seccomp": "2",
    "landlock_abi": 7,
    "read_only_root": True,
    "open_interfaces": 0,
}


def mounts(spec: BoxSpec) -> dict[str, tuple[str, bool]]:
    return {
        mount["Target"]: (mount["Type"], mount.get("ReadOnly", False)) for mount in plan(spec).config["HostConfig"]["Mounts"]
    }


def test_a_box_is_hardened_whatever_is_asked() -> None:
    config = plan(BoxSpec(image="sha256:x", labels=LABELS, policy=DangerFullAccess(), memory_mb=100, cpus=0.5, pids=7)).config
    host = config["HostConfig"]
    assert (config["OpenStdin"], config["StdinOnce"], config["Tty"], config["User"]) == (True, True, False, "1000:1000")
    assert (host["CapDrop"], host["ReadonlyRootfs"], host["NetworkMode"], host["IpcMode"]) == (["ALL"], True, "none", "private")
    assert (host["AutoRemove"], host["LogConfig"]) == (True, {"Type": "none"})
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"]) == (100 << 20, 100 << 20, 500_000_000, 7)
    assert host["SecurityOpt"][0] == "no-new-privileges"
    assert "Binds" not in host
    assert "Privileged" not in host


def test_labels_come_back_as_they_went() -> None:
    assert BoxLabels.from_labels(LABELS.as_labels()) == LABELS
    assert BoxLabels.from_labels({"patchyard.worker": "w"}) is None
    assert BoxLabels.from_labels({}) is None


def test_protected_names_of_a_workspace_become_mounts(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "a/b/.git").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    (tmp_path / "c/.git").write_text("gitdir: ../.git/modules/c\n")
    spec = BoxSpec(image="i", labels=LABELS, policy=WorkspaceWrite(), mounts=(BoxMount(tmp_path, "/workspace"),))
    assert mounts(spec) == {
        "/workspace": ("bind", False),
        "/workspace/.git": ("bind", True),
        "/workspace/a/b/.git": ("bind", True),
        "/workspace/c/.git": ("bind", True),
        "/workspace/.patchyard": ("tmpfs", True),
        "/workspace/.codex": ("tmpfs", True),
        "/workspace/.agents": ("tmpfs", True),
        "/workspace/.aws": ("tmpfs", True),
    }


def test_a_git_file_makes_the_folder_that_it_names_read_only(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /gitdir\n")
    given = (BoxMount(tmp_path, "/workspace"), BoxMount(tmp_path, "/gitdir"), BoxMount(tmp_path, "/workspace/.codex"))
    got = mounts(BoxSpec(image="i", labels=LABELS, policy=WorkspaceWrite(), mounts=given))
    assert got["/gitdir"] == ("bind", True)
    assert got["/workspace/.codex"] == ("bind", False), "the caller's own mount stays"


def test_a_read_only_box_has_no_writable_mount(tmp_path: Path) -> None:
    given = (BoxMount(tmp_path, "/workspace"), BoxMount(tmp_path, "/gitdir"))
    assert mounts(BoxSpec(image="i", labels=LABELS, policy=ReadOnly(), mounts=given)) == {
        "/workspace": ("bind", True),
        "/gitdir": ("bind", True),
    }


def test_links_in_the_place_of_protected_names(tmp_path: Path) -> None:
    (tmp_path / ".codex").symlink_to("/etc")
    spec = BoxSpec(image="i", labels=LABELS, policy=WorkspaceWrite(), mounts=(BoxMount(tmp_path, "/workspace"),))
    assert plan(spec).unprotected == (".codex",)
    assert "/workspace/.codex" not in mounts(spec)
    (tmp_path / ".git").symlink_to("/etc")
    with pytest.raises(BoxRefused, match="symlink"):
        plan(spec)


@pytest.mark.parametrize(
    ("policy", "roots"),
    [
        (ReadOnly(), ("/tmp",)),
        (WorkspaceWrite(writable_roots=("/cache",)), ("/workspace", "/tmp", "/cache")),
        (DangerFullAccess(), ("/",)),
        (ExternalSandbox(), ("/",)),
    ],
)
def test_writable_roots(policy: SandboxPolicy, roots: tuple[str, ...]) -> None:
    assert writable_roots(policy) == roots


def test_places() -> None:
    roots = ("/workspace", "/workspace/inner", "/tmp")
    assert place("/workspace/a//./b", roots) == ("/workspace", "a/b")
    assert place("/workspace/inner/b", roots) == ("/workspace/inner", "b")
    assert place("/workspace", roots) == ("/workspace", "")
    assert place("/etc/x", ("/",)) == ("/", "etc/x")
    for path in ("/etc/x", "/workspace2/x", "/workspace/../etc/x"):
        with pytest.raises(BoxRefused):
            place(path, roots)
    with pytest.raises(BadCommand):
        place("relative", roots)


def test_a_policy_that_the_kernel_cannot_enforce_is_refused() -> None:
    def records(policy: SandboxPolicy, box: SandboxPolicy, abi: int) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for key, value in policy_records(policy, box_policy=box, landlock_abi=abi):
            found.setdefault(key, []).append(value)
        return found

    assert records(ReadOnly(), WorkspaceWrite(), 7) == {"R": ["/"], "W": ["/tmp", "/dev"], "s": ["1"]}
    assert records(WorkspaceWrite(), WorkspaceWrite(), 0) == {"s": ["1"]}
    assert records(DangerFullAccess(), DangerFullAccess(), 7) == {}
    with pytest.raises(BoxRefused, match="Landlock"):
        records(ReadOnly(), WorkspaceWrite(), 0)


def test_a_hello_is_believed_only_as_far_as_it_goes() -> None:
    good = Confinement.from_hello(json.dumps(HELLO).encode())
    assert good.missing(user="1000:1000", network="none", read_only_root=True) == ()
    assert good.missing_extras == ()
    bad = {
        "pid": 2,
        "uid": 0,
        "cap_bnd": "00000000a80425fb",
        "no_new_privs": "0",
        "seccomp": "0",
        "read_only_root": False,
        "open_interfaces": 1,
        "landlock_abi": 0,
    }
    poor = Confinement.from_hello(json.dumps({**HELLO, **bad}).encode())
    assert len(poor.missing(user="1000:1000", network="none", read_only_root=True)) == 7
    assert len(poor.missing_extras) == 5
    unknown = Confinement.from_hello(json.dumps({**HELLO, "open_interfaces": -1}).encode())
    assert unknown.missing(user="1000:1000", network="none", read_only_root=True) != ()
    for payload in (
        b"",
        b"{}",
        b"[]",
        json.dumps({**HELLO, "protocol": 2}).encode(),
        json.dumps({**HELLO, "cap_eff": ""}).encode(),
    ):
        with pytest.raises(BoxRefused):
            Confinement.from_hello(payload)


def test_the_seccomp_profile_allows_landlock_and_refuses_what_is_not_listed() -> None:
    profile = json.loads(seccomp_profile())
    allowed = {name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {"landlock_restrict_self", "seccomp", "openat2", "renameat2", "execve", "clone"} <= allowed
    for name in ("ptrace", "io_uring_setup", "bpf", "mount", "unshare", "setns", "keyctl", "clone3", "process_vm_readv"):
        assert name not in allowed


def test_engine_addresses() -> None:
    assert EngineAddress.parse("unix:///run/docker.sock") == EngineAddress(path="/run/docker.sock")
    assert EngineAddress.parse("tcp://host:1234") == EngineAddress(host="host", port=1234)
    for url in ("", "ssh://host", "unix://", "/run/docker.sock"):
        with pytest.raises(ValueError, match="unix:///path"):
            EngineAddress.parse(url)
