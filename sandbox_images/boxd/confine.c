/* What a command may do: resource limits, Landlock and seccomp; and what of the box's confinement really holds. */
#define _GNU_SOURCE
#include "boxd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* --- Landlock: own copy of the kernel's interface, so that old headers do not hide new levels ------------------ */

enum { LANDLOCK_CREATE = 444, LANDLOCK_ADD = 445, LANDLOCK_RESTRICT = 446, RULE_PATH_BENEATH = 1 };
#define FS_EXECUTE (1ull << 0)
#define FS_WRITE_FILE (1ull << 1)
#define FS_READ_FILE (1ull << 2)
#define FS_READ_DIR (1ull << 3)
#define FS_FIRST_LEVEL ((1ull << 13) - 1)
#define FS_REFER (1ull << 13)
#define FS_TRUNCATE (1ull << 14)
#define FS_IOCTL_DEV (1ull << 15)
#define FS_OF_FILES (FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV)
#define SCOPE_SIGNALS (1ull << 1) /* abstract sockets stay open: boxd listens for apply_patch on one */

struct ruleset { uint64_t fs, net, scoped; };
struct path_rule { uint64_t access; int32_t fd; } __attribute__((packed));

int landlock_abi(void) {
    long abi = syscall(LANDLOCK_CREATE, NULL, 0, 1);
    return abi > 0 ? (int)abi : 0;
}

/* A path that does not exist needs no rule: nothing can be reached there. */
static int allow(int ruleset, const char *path, uint64_t access) {
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? 0 : -1;
    struct stat st;
    if (fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode)) access &= FS_OF_FILES;
    struct path_rule rule = {access, fd};
    int result = (int)syscall(LANDLOCK_ADD, ruleset, RULE_PATH_BENEATH, &rule, 0);
    close(fd);
    return result;
}

static int restrict_files(const struct spec *spec) {
    int abi = landlock_abi();
    if (!abi) return errno = ENOSYS, -1;
    struct ruleset handled = {.fs = FS_FIRST_LEVEL};
    if (abi >= 2) handled.fs |= FS_REFER;
    if (abi >= 3) handled.fs |= FS_TRUNCATE;
    if (abi >= 5) handled.fs |= FS_IOCTL_DEV;
    if (abi >= 6) handled.scoped = SCOPE_SIGNALS;
    size_t size = abi >= 6 ? 24 : abi >= 4 ? 16 : 8;
    int ruleset = (int)syscall(LANDLOCK_CREATE, &handled, size, 0);
    if (ruleset < 0) return -1;
    int result = 0;
    for (char **path = spec->readable; !result && *path; path++)
        result = allow(ruleset, *path, FS_EXECUTE | FS_READ_FILE | FS_READ_DIR);
    for (char **path = spec->writable; !result && *path; path++) result = allow(ruleset, *path, handled.fs);
    if (!result) result = (int)syscall(LANDLOCK_RESTRICT, ruleset, 0);
    close(ruleset);
    return result;
}

/* --- seccomp ----------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#else
#error "boxd knows x86-64 and arm64"
#endif

/* What no build, test or editor needs and what kernel bugs are reached by. Names that one architecture lacks are left out. */
static const unsigned DENIED[] = {
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_perf_event_open, SYS_bpf, SYS_userfaultfd,
    SYS_keyctl, SYS_add_key, SYS_request_key, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_unshare, SYS_setns,
    SYS_open_by_handle_at, SYS_name_to_handle_at, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load,
    SYS_acct, SYS_swapon, SYS_swapoff, SYS_reboot, SYS_quotactl, SYS_syslog, SYS_vhangup, SYS_settimeofday,
    SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex, SYS_sethostname, SYS_setdomainname, SYS_fanotify_init,
    425, 426, 427,           /* io_uring_setup, _enter, _register */
    428, 429, 430, 431, 432, 433, 442, /* open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr */
    438, 440,                /* pidfd_getfd, process_madvise */
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
#ifdef SYS_iopl
    SYS_iopl, SYS_ioperm, SYS_modify_ldt,
#endif
};
enum { DENIED_COUNT = sizeof DENIED / sizeof *DENIED, CLONE3 = 435, NEW_NAMESPACES = 0x7e020000 };

#define STMT(code, k) (program[n++] = (struct sock_filter)BPF_STMT(code, k))
#define JUMP(code, k, yes, no) (program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | code | BPF_K, k, yes, no))
#define LOAD(field) STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define REFUSE(error) STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define PERMIT() STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* Arguments are compared by their low half: the kernel cuts these to 32 bits too (all values are little endian). */
static int filter_syscalls(void) {
    struct sock_filter program[DENIED_COUNT * 2 + 48];
    unsigned short n = 0;
    LOAD(arch);
    JUMP(BPF_JEQ, NATIVE_ARCH, 1, 0);
    STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    LOAD(nr);
    JUMP(BPF_JGE, 0x40000000, 0, 1); /* the x32 interface */
    REFUSE(ENOSYS);
    for (unsigned i = 0; i < DENIED_COUNT; i++) {
        JUMP(BPF_JEQ, DENIED[i], 0, 1);
        REFUSE(EPERM);
    }
    JUMP(BPF_JEQ, CLONE3, 0, 1); /* its flags are behind a pointer; libraries fall back to clone */
    REFUSE(ENOSYS);
    JUMP(BPF_JEQ, SYS_clone, 0, 4);
    LOAD(args[0]);
    JUMP(BPF_JSET, NEW_NAMESPACES, 0, 1);
    REFUSE(EPERM);
    PERMIT();
    JUMP(BPF_JEQ, SYS_ioctl, 0, 5);
    LOAD(args[1]);
    JUMP(BPF_JEQ, TIOCSTI, 1, 0);
    JUMP(BPF_JEQ, 0x541c /* TIOCLINUX */, 0, 1);
    REFUSE(EPERM);
    PERMIT();
    JUMP(BPF_JEQ, SYS_socket, 1, 0);
    PERMIT();
    LOAD(args[0]); /* local sockets, IP without raw sockets, and netlink for routes: the box has a loopback only */
    JUMP(BPF_JEQ, AF_UNIX, 0, 1);
    PERMIT();
    JUMP(BPF_JEQ, AF_NETLINK, 0, 4);
    LOAD(args[2]);
    JUMP(BPF_JEQ, 0 /* NETLINK_ROUTE */, 0, 1);
    PERMIT();
    REFUSE(EACCES);
    JUMP(BPF_JEQ, AF_INET, 2, 0);
    JUMP(BPF_JEQ, AF_INET6, 1, 0);
    REFUSE(EAFNOSUPPORT);
    LOAD(args[1]);
    STMT(BPF_ALU | BPF_AND | BPF_K, 0xf);
    JUMP(BPF_JEQ, SOCK_RAW, 0, 1);
    REFUSE(EPERM);
    PERMIT();
    struct sock_fprog filter = {n, program};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

int confine(const struct spec *spec) {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    if ((*spec->readable || *spec->writable) && restrict_files(spec)) return -1;
    return spec->filter ? filter_syscalls() : 0;
}

int apply_limits(const struct spec *spec) {
    static const struct { const char *name; int resource; } KNOWN[] = {
        {"cpu", RLIMIT_CPU}, {"fsize", RLIMIT_FSIZE}, {"as", RLIMIT_AS}, {"nproc", RLIMIT_NPROC}};
    for (char **limit = spec->limits; *limit; limit++) {
        char *value = strchr(*limit, ':');
        bool found = false;
        for (size_t i = 0; value && i < sizeof KNOWN / sizeof *KNOWN; i++) {
            if (strncmp(*limit, KNOWN[i].name, (size_t)(value - *limit)) || KNOWN[i].name[value - *limit]) continue;
            rlim_t most = strtoull(value + 1, NULL, 10);
            if (setrlimit(KNOWN[i].resource, &(struct rlimit){most, most})) return -1;
            found = true;
        }
        if (!found) return errno = EINVAL, -1;
    }
    return 0;
}

/* --- hello --------------------------------------------------------------------------------------------------------- */

static void status_field(const char *status, const char *name, char *out, size_t size) {
    const char *line = strstr(status, name);
    *out = 0;
    if (line && sscanf(line + strlen(name), " %31s", out) != 1) *out = 0;
    (void)size;
}

/* Interfaces beside the loopback that are up; -1 if that can't be told. */
static int open_interfaces(void) {
    struct if_nameindex *all = if_nameindex();
    int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), count = 0;
    if (!all || probe < 0) return -1;
    for (struct if_nameindex *one = all; one->if_name; one++) {
        struct ifreq request = {0};
        strncpy(request.ifr_name, one->if_name, IFNAMSIZ - 1);
        if (ioctl(probe, SIOCGIFFLAGS, &request) || ((request.ifr_flags & IFF_UP) && !(request.ifr_flags & IFF_LOOPBACK))) count++;
    }
    if_freenameindex(all);
    close(probe);
    return count;
}

int hello_json(char *out, size_t size) {
    char status[8192] = "", effective[32], bounding[32], privileges[32], seccomp[32];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, status, sizeof status - 1);
    if (fd >= 0) close(fd);
    status[got > 0 ? got : 0] = 0;
    status_field(status, "\nCapEff:", effective, sizeof effective);
    status_field(status, "\nCapBnd:", bounding, sizeof bounding);
    status_field(status, "\nNoNewPrivs:", privileges, sizeof privileges);
    status_field(status, "\nSeccomp:", seccomp, sizeof seccomp);
    struct statvfs root;
    int read_only = statvfs("/", &root) == 0 && (root.f_flag & ST_RDONLY);
    return snprintf(out, size,
                    "{\"protocol\":%d,\"pid\":%d,\"uid\":%d,\"gid\":%d,\"cap_eff\":\"%s\",\"cap_bnd\":\"%s\",\"no_new_privs\":\"%s\","
                    "\"seccomp\":\"%s\",\"landlock_abi\":%d,\"read_only_root\":%s,\"open_interfaces\":%d,\"stdin_window\":%d}",
                    PROTOCOL, getpid(), getuid(), getgid(), effective, bounding, privileges, seccomp, landlock_abi(),
                    read_only ? "true" : "false", open_interfaces(), STDIN_WINDOW);
}

/* cgroup v2 and v1 count these in different files; both are kept open because a look costs each command. */
long oom_kills(void) {
    static const char *const FILES[] = {"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"};
    static int fd = -2;
    if (fd == -2)
        for (int i = 0; i < 2 && fd < 0; i++) fd = open(FILES[i], O_RDONLY | O_CLOEXEC);
    char text[512];
    ssize_t got = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (got <= 0) return -1;
    text[got] = 0;
    char *field = strstr(text, "oom_kill ");
    return field ? atol(field + strlen("oom_kill ")) : -1;
}
