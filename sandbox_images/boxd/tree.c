/* Process trees: a supervisor per command, which inherits whatever of it daemonises, and signals to all below it. */
#define _GNU_SOURCE
#include "boxd.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

enum { MAX_PROCESSES = 4096, KILL_ROUNDS = 64, CLOSE_RANGE = 436 };

struct process { pid_t pid, parent; };

/* 0 when it is gone. */
static pid_t parent_of(pid_t pid, char *state) {
    char path[64], stat[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got = read(fd, stat, sizeof stat - 1);
    close(fd);
    if (got <= 0) return 0;
    stat[got] = 0;
    char *after_name = strrchr(stat, ')'); /* the name itself may hold anything */
    pid_t parent;
    return after_name && sscanf(after_name + 1, " %c %d", state, &parent) == 2 ? parent : 0;
}

/* Whatever is reparented on the way goes to its supervisor, so a second walk finds that. */
pid_t supervisor_of(pid_t pid) {
    char state;
    for (int walk = 0; walk < 3; walk++)
        for (pid_t at = pid, parent; (parent = parent_of(at, &state)) > 0; at = parent)
            if (parent == getpid()) return at;
    return 0;
}

/* Living processes (zombies left out). */
static size_t list_processes(struct process *found) {
    DIR *proc = opendir("/proc");
    size_t count = 0;
    for (struct dirent *entry; proc && count < MAX_PROCESSES && (entry = readdir(proc));) {
        if (!isdigit((unsigned char)*entry->d_name)) continue;
        char state;
        pid_t pid = atoi(entry->d_name), parent = parent_of(pid, &state);
        if (parent > 0 && state != 'Z') found[count++] = (struct process){pid, parent};
    }
    if (proc) closedir(proc);
    return count;
}

static int signal_descendants(pid_t top, int signal) {
    static struct process all[MAX_PROCESSES];
    static bool below[MAX_PROCESSES];
    size_t count = list_processes(all);
    memset(below, 0, sizeof below);
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < count; i++) {
            if (below[i] || all[i].pid == top) continue;
            bool hit = all[i].parent == top;
            for (size_t j = 0; !hit && j < count; j++) hit = below[j] && all[j].pid == all[i].parent;
            if (hit) below[i] = more = true;
        }
    }
    int hit = 0;
    for (size_t i = 0; i < count; i++)
        if (below[i] && kill(all[i].pid, signal) == 0) hit++;
    return hit;
}

/* A tree that forks while it is killed is stopped first: stopped processes have no children. */
int kill_tree(pid_t top, int signal) {
    kill(top, SIGCONT); /* nothing may have stopped the supervisor, which has to tell the end */
    if (signal != SIGKILL) return signal_descendants(top, signal);
    int known = -1, hit = 0;
    for (int round = 0; round < KILL_ROUNDS && (hit = signal_descendants(top, SIGSTOP)) > known; round++) known = hit;
    for (int round = 0; round < KILL_ROUNDS && signal_descendants(top, SIGKILL) > 0; round++) sched_yield();
    return hit;
}

/* Children of ours that are no supervisors come from a supervisor that somebody killed. */
void kill_orphans(const pid_t *supervisors, size_t count) {
    static struct process all[MAX_PROCESSES];
    for (int round = 0, hit = 1; hit && round < KILL_ROUNDS; round++) {
        hit = 0;
        size_t found = list_processes(all);
        for (size_t i = 0; i < found; i++) {
            bool known = all[i].parent != getpid();
            for (size_t j = 0; !known && j < count; j++) known = supervisors[j] == all[i].pid;
            if (known) continue;
            kill_tree(all[i].pid, SIGKILL);
            if (kill(all[i].pid, SIGKILL) == 0) hit++;
        }
    }
}

static void tell(int fd, struct report report) {
    while (write(fd, &report, sizeof report) < 0 && errno == EINTR) continue;
}

static void __attribute__((noreturn)) give_up(int status, enum stage stage) {
    tell(status, (struct report){.kind = FAILED, .stage = stage, .error = errno});
    _exit(127);
}

/* The command itself, with its stdio in place. `failure` closes when the program was executed. */
static void __attribute__((noreturn)) become(const struct spec *spec, int failure) {
    sigset_t none;
    sigemptyset(&none);
    for (int number = 1; number < 32; number++) signal(number, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(022);
    setsid();
    if (spec->tty && ioctl(0, TIOCSCTTY, 0)) give_up(failure, AT_TTY);
    if (chdir(spec->cwd)) give_up(failure, AT_CWD);
    if (apply_limits(spec)) give_up(failure, AT_LIMIT);
    if (confine(spec)) give_up(failure, AT_CONFINE);
    if (spec->builtin) {
        syscall(CLOSE_RANGE, 3, ~0u, 0);
        _exit(run_builtin(spec));
    }
    for (char **pair = spec->env; *pair; pair++) putenv(*pair);
    execvp(spec->argv[0], spec->argv);
    give_up(failure, AT_EXEC);
}

void supervise(const struct spec *spec, int in, int out, int status) {
    sigset_t every;
    sigfillset(&every);
    sigprocmask(SIG_SETMASK, &every, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_NAME, "boxd-supervisor");
    /* The ends of other commands' pipes must not live on here; what is kept moves out of the way of 0..2 first. */
    int kept = fcntl(status, F_DUPFD_CLOEXEC, 10), kept_in = fcntl(in, F_DUPFD_CLOEXEC, 10), kept_out = fcntl(out, F_DUPFD_CLOEXEC, 10);
    dup2(kept_in, 0);
    dup2(kept_out, 1);
    dup2(kept_out, 2);
    dup3(kept, 3, O_CLOEXEC);
    syscall(CLOSE_RANGE, 4, ~0u, 0);
    status = 3;

    int failure[2];
    if (pipe2(failure, O_CLOEXEC)) give_up(status, AT_FORK);
    pid_t command = fork();
    if (command < 0) give_up(status, AT_FORK);
    if (!command) become(spec, failure[1]);
    close(failure[1]);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++) dup2(null, fd);
    if (null > 2) close(null);

    struct report report;
    if (read(failure[0], &report, sizeof report) == sizeof report) {
        tell(status, report);
        _exit(127);
    }
    close(failure[0]);
    tell(status, (struct report){.kind = BEGUN});
    for (;;) {
        struct report ended = {.kind = EXITED};
        pid_t pid = wait4(-1, &ended.status, 0, &ended.usage);
        if (pid == command) tell(status, ended);
        if (pid < 0 && errno != EINTR) _exit(0); /* nobody of the tree is left */
    }
}
