"""From a policy to what boxd enforces for one command, from boxd's hello to what really holds, and the seccomp profile."""

import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, assert_never

from patchyard.protocol.policies import DangerFullAccess, ExternalSandbox, ReadOnly, SandboxPolicy, WorkspaceWrite

from ._frames import PROTOCOL
from .errors import BadCommand, BoxRefused

WORKSPACE = "/workspace"
SCRATCH = "/tmp"  # noqa: S108
DEVICES = "/dev"
"""Its own tmpfs with null, tty, pts and the like, owned by root: what Landlock allows here, permissions still refuse."""
PROTECTED_NAMES = (".git", ".patchyard", ".codex", ".agents", ".aws")

_LANDLOCK_EXTRAS = {
    1: "per-command file rules",
    2: "moves between folders",
    3: "truncation",
    5: "device ioctls",
    6: "signals to other commands",
}
"""What each Landlock ABI level adds to per-command confinement."""


class Place(NamedTuple):
    """A path split into the root that confines it and the rest."""

    root: str
    path: str


def writable_roots(policy: SandboxPolicy) -> tuple[str, ...]:
    """Where files may be written through the service."""
    match policy:
        case ReadOnly():
            return (SCRATCH,)
        case WorkspaceWrite():
            return (WORKSPACE, SCRATCH, *policy.writable_roots)
        case DangerFullAccess() | ExternalSandbox():
            return ("/",)
        case _:
            assert_never(policy)


def protected_names(policy: SandboxPolicy) -> tuple[str, ...]:
    """Names that may not be written below the writable roots."""
    return PROTECTED_NAMES if isinstance(policy, WorkspaceWrite) else ()


def place(path: str, roots: tuple[str, ...]) -> Place:
    """The innermost root that holds `path`. BadCommand: not absolute. BoxRefused: `..`, or no root holds it."""
    if not path.startswith("/") or "\0" in path:
        raise BadCommand(f"{path!r} must be an absolute path inside the sandbox.")
    if ".." in path.split("/"):
        raise BoxRefused(f"{path} must not contain `..`.")
    clean = posixpath.normpath(path).replace("//", "/")
    holding = [root for root in roots if root == "/" or clean == root or clean.startswith(root.rstrip("/") + "/")]
    if not holding:
        raise BoxRefused(f"{path} is outside the folders that may be written: {', '.join(roots)}.")
    root = max(holding, key=len)
    return Place(root, clean[len(root.rstrip("/")) + 1 :])


def _breadth(policy: SandboxPolicy) -> int:
    match policy:
        case ReadOnly():
            return 0
        case WorkspaceWrite():
            return 1
        case DangerFullAccess() | ExternalSandbox():
            return 2
        case _:
            assert_never(policy)


def policy_records(policy: SandboxPolicy, *, box_policy: SandboxPolicy, landlock_abi: int) -> Iterator[tuple[str, str]]:
    """Spawn records that confine one command. BoxRefused: narrower than the box without Landlock."""
    if _breadth(policy) == 2:
        return
    if landlock_abi:
        yield "R", "/"
        for root in (*writable_roots(policy), DEVICES):
            yield "W", root
    elif _breadth(policy) < _breadth(box_policy):
        raise BoxRefused(f"The policy {policy.type} can't be enforced in this box: the engine's kernel has no Landlock.")
    yield "s", "1"


@dataclass(frozen=True)
class Confinement:
    """What boxd found when it started."""

    uid: int
    gid: int
    no_capabilities: bool
    no_new_privileges: bool
    seccomp: bool
    landlock_abi: int
    read_only_root: bool
    open_interfaces: int
    """Network interfaces beside the loopback that are up; -1 when boxd could not tell."""
    is_init: bool

    @classmethod
    def from_hello(cls, payload: bytes) -> "Confinement":
        """BoxRefused when boxd speaks another protocol version or says nothing sensible."""
        try:
            hello: dict[str, Any] = json.loads(payload)
            if hello["protocol"] != PROTOCOL:
                raise BoxRefused(
                    "The image's boxd is of another version: build the image again with `python sandbox_images/build.py`."
                )
            return cls(
                uid=hello["uid"],
                gid=hello["gid"],
                no_capabilities=int(hello["cap_eff"], 16) == 0 and int(hello["cap_bnd"], 16) == 0,
                no_new_privileges=hello["no_new_privs"] == "1",
                seccomp=hello["seccomp"] == "2",
                landlock_abi=hello["landlock_abi"],
                read_only_root=hello["read_only_root"],
                open_interfaces=hello["open_interfaces"],
                is_init=hello["pid"] == 1,
            )
        except (ValueError, KeyError, TypeError):
            raise BoxRefused(
                "The image's first process is not boxd: build the image with `python sandbox_images/build.py`."
            ) from None

    def missing(self, *, user: str, network: str, read_only_root: bool) -> tuple[str, ...]:
        """Required confinement that does not hold, in words; empty when all is well."""
        checks = {
            "it is not the first process of its PID namespace": not self.is_init,
            f"its user is {self.uid}:{self.gid} instead of {user}": f"{self.uid}:{self.gid}" != user,
            "it has capabilities": not self.no_capabilities,
            "no-new-privileges is off": not self.no_new_privileges,
            "seccomp is off": not self.seccomp,
            "its root file system is writable": read_only_root and not self.read_only_root,
            "it has a network": network == "none" and self.open_interfaces != 0,
        }
        return tuple(problem for problem, present in checks.items() if present)

    @property
    def missing_extras(self) -> tuple[str, ...]:
        """Confinement per command that this kernel can't give."""
        return tuple(name for level, name in _LANDLOCK_EXTRAS.items() if self.landlock_abi < level)


# --- the seccomp profile of every box ---------------------------------------------------------------------------------
# An allow list, so that system calls of future kernels are refused too. Left out on purpose: ptrace and other processes'
# memory, io_uring, bpf, perf, userfaultfd, keys, modules, mounts, namespaces, file handles, clocks, NUMA. boxd adds a
# filter of its own per command for what depends on that command's policy (docs/subsystems/sandbox.md).

_ALLOWED = """
accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown clock_getres clock_getres_time64
clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64 close close_range connect copy_file_range creat dup
dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit
exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl
fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat fstatat64 fstatfs fstatfs64
fsync ftruncate ftruncate64 futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake futimesat get_robust_list
get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp
getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid
gettimeofday getuid getxattr getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy
io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit ioprio_get ioprio_set kill landlock_add_rule
landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listxattr listxattrat llistxattr llseek
lremovexattr lseek lsetxattr lstat lstat64 madvise map_shadow_stack membarrier memfd_create mincore mkdir mkdirat mknod
mknodat mlock mlock2 mlockall mmap mmap2 mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64
mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap
nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect
poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64 process_mrelease pselect6 pselect6_time64 pwrite64 pwritev
pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr
removexattrat rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask
rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select
semctl semget semop semtimedop semtimedop_time64 sendfile sendfile64 sendmmsg sendmsg sendto set_robust_list
set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid setresgid
setresuid setreuid setrlimit setsid setsockopt setuid setxattr setxattrat shmat shmctl shmdt shmget shutdown sigaltstack
signalfd signalfd4 socketpair splice stat stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range syncfs
sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime
timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate
truncate64 umask uname unlink unlinkat utime utimensat utimensat_time64 utimes vfork wait4 waitid write writev
""".split()  # noqa: SIM905

_EPERM, _ENOSYS = 1, 38
_NEW_NAMESPACES = 0x7E02_0000
_TIOCSTI = 0x5412
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""UNIX, INET, INET6, NETLINK: no vsock, no kernel crypto, no raw packets."""
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFF_FFFF)
"""Linux, with or without its old memory layouts, and the question which one it is."""


def _argument(index: int, op: str, value: int, second: int = 0) -> list[dict[str, Any]]:
    return [{"index": index, "value": value, "valueTwo": second, "op": f"SCMP_CMP_{op}"}]


def _allow(name: str, args: list[dict[str, Any]]) -> dict[str, Any]:
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": args}


def seccomp_profile() -> str:
    """The profile as the engine takes it inline."""
    return json.dumps(
        {
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": _EPERM,
            "archMap": [
                {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
                {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
            ],
            "syscalls": [
                {"names": _ALLOWED, "action": "SCMP_ACT_ALLOW", "args": []},
                _allow("clone", _argument(0, "MASKED_EQ", _NEW_NAMESPACES)),
                # Its flags are behind a pointer; libraries fall back to clone on this error only.
                {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS, "args": []},
                _allow("ioctl", _argument(1, "NE", _TIOCSTI)),
                *(_allow("socket", _argument(0, "EQ", family)) for family in _SOCKET_FAMILIES),
                *(_allow("personality", _argument(0, "EQ", value)) for value in _PERSONALITIES),
            ],
        }
    )
