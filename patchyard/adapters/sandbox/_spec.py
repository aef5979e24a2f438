"""What a box is made from, and the engine's container configuration of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from patchyard.protocol.policies import ReadOnly, SandboxPolicy, WorkspaceWrite

from ._confinement import WORKSPACE, seccomp_profile
from ._protected import examine

LABEL_PREFIX = "patchyard."
INSTALLATION_LABEL = "patchyard.installation"


@dataclass(frozen=True)
class BoxLabels:
    """Whose box it is: what the reaper decides by."""

    tenant: str
    thread: str
    turn: str
    worker: str
    kind: str = "turn"
    """turn | verify | setup."""
    lease_until_ms: int = 0
    """When the owner's lease ended unless it was renewed; milliseconds since the epoch."""

    def as_labels(self) -> dict[str, str]:
        """Labels of the container."""
        values = {"tenant": self.tenant, "thread": self.thread, "turn": self.turn, "worker": self.worker, "kind": self.kind}
        return {LABEL_PREFIX + name: value for name, value in {**values, "lease_until": str(self.lease_until_ms)}.items()}

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> "BoxLabels | None":
        """None when the container is not a box of ours."""
        values = {name.removeprefix(LABEL_PREFIX): value for name, value in labels.items() if name.startswith(LABEL_PREFIX)}
        try:
            lease = int(values.pop("lease_until"))
            return cls(**{name: values[name] for name in ("tenant", "thread", "turn", "worker", "kind")}, lease_until_ms=lease)
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True)
class BoxMount:
    """A folder or file of the engine's host inside the box."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class BoxSpec:
    """A box to start."""

    image: str
    """Image id."""
    labels: BoxLabels
    policy: SandboxPolicy
    """The widest policy that a command of this box may have; the mounts enforce it whatever the kernel can do."""
    mounts: tuple[BoxMount, ...] = ()
    memory_mb: int = 2048
    cpus: float = 2.0
    pids: int = 512
    tmpfs_mb: Mapping[str, int] = field(default_factory=lambda: {"/tmp": 1024})  # noqa: S108
    """Writable scratch file systems, by path; counted as memory of the box."""
    disk: tuple[str, ...] = ()
    """Paths on a disk volume that starts with the image's content there and goes with the box."""
    user: str = "1000:1000"
    network: str = "none"
    """Docker network. Anything but none is for the set-up phase only."""
    read_only_root: bool = True
    silence_s: int = 60
    """boxd ends the box when its worker says nothing for so long."""


@dataclass(frozen=True)
class BoxPlan:
    """The container's configuration and what could not be protected."""

    config: Mapping[str, Any]
    unprotected: tuple[str, ...]


def plan(spec: BoxSpec) -> BoxPlan:
    """The container of a box. Looks at the workspace's files; call it off the event loop. BoxRefused as `examine`."""
    mounts = list(spec.mounts)
    unprotected: tuple[str, ...] = ()
    absent: list[str] = []
    if isinstance(spec.policy, ReadOnly):
        mounts = [replace(mount, read_only=True) for mount in mounts]
    workspace = next((mount for mount in mounts if mount.target == WORKSPACE), None)
    if isinstance(spec.policy, WorkspaceWrite) and workspace and not workspace.read_only:
        found = examine(workspace.source)
        covered = {mount.target for mount in mounts}
        mounts = [replace(mount, read_only=True) if mount.target == found.git_directory else mount for mount in mounts]
        for path in found.read_only:
            if f"{WORKSPACE}/{path}" not in covered:
                mounts.append(BoxMount(workspace.source / path, f"{WORKSPACE}/{path}", read_only=True))
        absent = [f"{WORKSPACE}/{path}" for path in found.absent if f"{WORKSPACE}/{path}" not in covered]
        unprotected = found.links
    binds = [
        {"Type": "bind", "Source": str(mount.source), "Target": mount.target, "ReadOnly": mount.read_only}
        for mount in sorted(mounts, key=lambda mount: mount.target)
    ]
    empty = [
        {"Type": "tmpfs", "Target": path, "ReadOnly": True, "TmpfsOptions": {"SizeBytes": 4096, "Mode": 0o555}}
        for path in absent
    ]
    volumes = [{"Type": "volume", "Target": path} for path in spec.disk]
    return BoxPlan(_container(spec, [*binds, *volumes, *empty]), tuple(unprotected))


def _container(spec: BoxSpec, mounts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    memory = spec.memory_mb << 20
    tmpfs = {path: f"rw,nosuid,nodev,exec,mode=1777,size={size}m" for path, size in spec.tmpfs_mb.items()}
    return {
        "Image": spec.image,
        "Entrypoint": ["/usr/local/libexec/boxd"],
        "Cmd": [str(spec.silence_s)],
        "User": spec.user,
        "WorkingDir": WORKSPACE,
        "Hostname": "box",
        "Labels": spec.labels.as_labels(),
        # StdinOnce: the container's stdin closes when this one attached client goes away, whatever the way it dies.
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "HostConfig": {
            "AutoRemove": True,
            "LogConfig": {"Type": "none"},
            "NetworkMode": spec.network,
            "IpcMode": "private",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp_profile()}"],
            "ReadonlyRootfs": spec.read_only_root,
            "Tmpfs": tmpfs,
            "Mounts": list(mounts),
            "PidsLimit": spec.pids,
            "Memory": memory,
            "MemorySwap": memory,
            "NanoCpus": int(spec.cpus * 1_000_000_000),
            "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        },
    }
