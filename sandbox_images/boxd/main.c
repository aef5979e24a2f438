/* The event loop: frames in, frames out, commands between them. */
#define _GNU_SOURCE
#include "boxd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

struct command {
    bool used, tty, begun, doomed, exited, done, stdin_ends, timed_out;
    uint32_t id;
    pid_t supervisor;    /* 0 once it is gone */
    int in, out, status; /* -1 when closed */
    size_t credit;
    char *pending;       /* stdin that the command did not take yet */
    size_t pending_size;
    int64_t started_us, deadline_us; /* 0: none */
    int64_t drained_us, drain_end_us; /* after the exit: when its output counts as over, and when at the latest */
    int backlog;                     /* bytes that waited in the pipe at the exit: these are always sent */
    long oom_before;
};

static struct command commands[MAX_COMMANDS];
static int from_host, to_host, signals;
static int64_t heard_us, silence_us;
static struct { char *data; size_t start, end, room; } sending;
static struct { char *data; size_t end, room; } received;

int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000ll + now.tv_nsec / 1000;
}

static void __attribute__((noreturn)) leave(int code) {
    /* The kernel ends a PID namespace with its PID 1; elsewhere this does. */
    for (struct command *c = commands; c < commands + MAX_COMMANDS; c++)
        if (c->used && c->supervisor) kill_tree(c->supervisor, SIGKILL);
    _exit(code);
}

/* --- sending -------------------------------------------------------------------------------------------------------- */

char *reserve(size_t size) {
    if (sending.end + size > sending.room) {
        memmove(sending.data, sending.data + sending.start, sending.end - sending.start);
        sending.end -= sending.start;
        sending.start = 0;
    }
    if (sending.end + size > sending.room) {
        sending.room = (sending.end + size) * 2;
        if (!(sending.data = realloc(sending.data, sending.room))) leave(70);
    }
    return sending.data + sending.end;
}

void put_u32(char *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (char)(value >> (24 - 8 * i));
}

static uint32_t get_u32(const char *at) {
    const unsigned char *p = (const unsigned char *)at;
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Turns the `size` bytes that already stand behind the reserved header into a frame. */
void frame_in_place(char type, uint32_t id, size_t size) {
    char *at = sending.data + sending.end;
    put_u32(at, (uint32_t)size + 5);
    at[4] = type;
    put_u32(at + 5, id);
    sending.end += size + 9;
}

void send_frame(char type, uint32_t id, const void *payload, size_t size) {
    memcpy(reserve(size + 9) + 9, payload, size);
    frame_in_place(type, id, size);
}

static void send_number(char type, uint32_t id, uint32_t value) {
    char payload[4];
    put_u32(payload, value);
    send_frame(type, id, payload, sizeof payload);
}

static void send_failed(uint32_t id, enum stage stage, int error) {
    char payload[5] = {(char)stage};
    put_u32(payload + 1, (uint32_t)error);
    send_frame('F', id, payload, sizeof payload);
}

bool is_full(void) {
    return sending.end - sending.start > OUT_HIGH;
}

static void flush(void) {
    while (sending.start < sending.end) {
        ssize_t sent = write(to_host, sending.data + sending.start, sending.end - sending.start);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) return;
        if (sent < 0) leave(0);
        sending.start += (size_t)sent;
    }
    sending.start = sending.end = 0;
}

/* --- a command's life ------------------------------------------------------------------------------------------------ */

static void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static struct command *find(uint32_t id) {
    for (struct command *c = commands; c < commands + MAX_COMMANDS; c++)
        if (c->used && c->id == id) return c;
    return NULL;
}

uint32_t command_of(pid_t supervisor) {
    for (struct command *c = commands; supervisor > 0 && c < commands + MAX_COMMANDS; c++)
        if (c->used && c->supervisor == supervisor) return c->id;
    return 0;
}

static const struct command UNUSED = {.in = -1, .out = -1, .status = -1};

static void forget(struct command *c) {
    close_fd(&c->in), close_fd(&c->out), close_fd(&c->status);
    free(c->pending);
    *c = UNUSED;
}

/* Appends to the list of a key; the frame's own bytes hold the strings. */
static void append(char ***list, char *value) {
    size_t count = 0;
    while (*list && (*list)[count]) count++;
    if (!*list || (count & (count + 1)) == 0) *list = realloc(*list, (count * 2 + 4) * sizeof **list);
    if (!*list) leave(70);
    (*list)[count] = value;
    (*list)[count + 1] = NULL;
}

static bool parse(struct spec *spec, char *record, char *end) {
    char ***lists[] = {&spec->argv, &spec->env, &spec->readable, &spec->writable, &spec->limits, &spec->protect};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) *lists[i] = calloc(4, sizeof **lists[i]);
    if (record == end || end[-1]) return false;
    for (; record < end; record += strlen(record) + 1) {
        char *value = record + 1;
        switch (*record) {
        case 'a': append(&spec->argv, value); break;
        case 'e': append(&spec->env, value); break;
        case 'R': append(&spec->readable, value); break;
        case 'W': append(&spec->writable, value); break;
        case 'r': append(&spec->limits, value); break;
        case 'p': append(&spec->protect, value); break;
        case 'c': spec->cwd = value; break;
        case 'b': spec->builtin = value; break;
        case 's': spec->filter = true; break;
        case 't': spec->tty = sscanf(value, "%u %u", &spec->rows, &spec->columns) == 2; break;
        case 'k': spec->credit = strtoul(value, NULL, 10); break;
        case 'w': spec->wall_ms = strtoll(value, NULL, 10); break;
        default: return false;
        }
    }
    return *spec->argv && spec->cwd;
}

static void free_spec(struct spec *spec) {
    free(spec->argv), free(spec->env), free(spec->readable), free(spec->writable), free(spec->limits), free(spec->protect);
}

/* The command's end of stdin and stdout first, ours second. */
static bool open_stdio(const struct spec *spec, int in[2], int out[2]) {
    if (!spec->tty) return !pipe2(in, O_CLOEXEC) && !pipe2(out, O_CLOEXEC);
    char name[64];
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0) return false;
    out[0] = master;
    if (grantpt(master) || unlockpt(master) || ptsname_r(master, name, sizeof name)) return false;
    struct winsize size = {.ws_row = (unsigned short)spec->rows, .ws_col = (unsigned short)spec->columns};
    ioctl(master, TIOCSWINSZ, &size);
    in[0] = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    out[1] = fcntl(in[0], F_DUPFD_CLOEXEC, 3);
    in[1] = fcntl(master, F_DUPFD_CLOEXEC, 3);
    return in[0] >= 0 && out[1] >= 0 && in[1] >= 0;
}

static void start(struct command *c, uint32_t id, const struct spec *spec) {
    int in[2] = {-1, -1}, out[2] = {-1, -1}, status[2] = {-1, -1};
    pid_t pid = -1;
    enum stage stage = spec->tty ? AT_TTY : AT_FORK;
    if (open_stdio(spec, in, out) && !pipe2(status, O_CLOEXEC)) {
        stage = AT_FORK;
        pid = fork();
        if (!pid) supervise(spec, in[0], out[1], status[1]);
    }
    if (pid < 0) send_failed(id, stage, errno);
    close_fd(&in[0]), close_fd(&out[1]), close_fd(&status[1]);
    if (pid < 0) {
        close_fd(&in[1]), close_fd(&out[0]), close_fd(&status[0]);
        return;
    }
    int64_t now = now_us();
    *c = (struct command){.used = true, .id = id, .tty = spec->tty, .supervisor = pid, .in = in[1], .out = out[0], .status = status[0],
                          .credit = spec->credit, .started_us = now, .deadline_us = spec->wall_ms ? now + spec->wall_ms * 1000 : 0,
                          .oom_before = oom_kills()};
    fcntl(c->in, F_SETFL, O_NONBLOCK);
    fcntl(c->out, F_SETFL, O_NONBLOCK);
}

static void spawn(uint32_t id, char *payload, size_t size) {
    struct command *c = commands;
    while (c < commands + MAX_COMMANDS && c->used) c++;
    struct spec spec = {0};
    if (find(id) || !parse(&spec, payload, payload + size)) send_failed(id, AT_SPEC, EINVAL);
    else if (c == commands + MAX_COMMANDS) send_failed(id, AT_FORK, EAGAIN);
    else start(c, id, &spec);
    free_spec(&spec);
}

/* What still comes soon after the exit is the command's; what a daemon keeps on writing is not. */
static void expect_more(struct command *c, int64_t now) {
    c->drained_us = now + DRAIN_MS * 1000;
    if (c->backlog <= 0 && c->drained_us > c->drain_end_us) c->drained_us = c->drain_end_us;
}

static void end_output(struct command *c) {
    if (c->done) return;
    c->done = true;
    send_frame('D', c->id, "", 0);
}

static void end_stdin(struct command *c) {
    /* A terminal has no end of file: its line discipline makes one of Ctrl-D. */
    if (c->tty && c->in >= 0 && write(c->in, "\004", 1) < 0) return;
    if (!c->tty) close_fd(&c->in);
}

static void write_stdin(struct command *c) {
    while (c->pending_size && c->in >= 0) {
        ssize_t taken = write(c->in, c->pending, c->pending_size);
        if (taken < 0 && errno == EINTR) continue;
        if (taken < 0 && errno == EAGAIN) return;
        if (taken < 0) {
            close_fd(&c->in);
            c->pending_size = 0;
            send_frame('U', c->id, "", 0);
            return;
        }
        c->pending_size -= (size_t)taken;
        memmove(c->pending, c->pending + taken, c->pending_size);
        send_number('T', c->id, (uint32_t)taken);
    }
    if (!c->pending_size && c->stdin_ends) {
        c->stdin_ends = false;
        end_stdin(c);
    }
}

static void take_stdin(struct command *c, const char *data, size_t size) {
    if (c->in < 0) return;
    if (c->pending_size + size > STDIN_WINDOW) leave(76); /* the host broke the protocol */
    if (!c->pending && !(c->pending = malloc(STDIN_WINDOW))) leave(70);
    memcpy(c->pending + c->pending_size, data, size);
    c->pending_size += size;
    write_stdin(c);
}

/* Sends what the command wrote, as far as the host gave credit. After the end of output a daemon's words are dropped. */
static void read_output(struct command *c) {
    if (is_full()) return; /* it filled up in this very turn */
    size_t most = c->done || c->credit > CHUNK ? CHUNK : c->credit;
    char *at = reserve(9 + CHUNK) + 9;
    ssize_t got = read(c->out, at, most);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) { /* end of file, or EIO from a terminal that nobody holds any more */
        close_fd(&c->out);
        end_output(c);
    } else if (!c->done) {
        c->credit -= (size_t)got;
        c->backlog -= (int)got;
        if (c->exited) expect_more(c, now_us());
        frame_in_place('O', c->id, (size_t)got);
    }
}

static void exited(struct command *c, int status, const struct rusage *usage, bool lost) {
    if (c->exited) return;
    int signal = lost ? SIGKILL : WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    int code = signal ? 128 + signal : WEXITSTATUS(status);
    int64_t now = now_us();
    int64_t cpu = usage->ru_utime.tv_sec * 1000000ll + usage->ru_utime.tv_usec + usage->ru_stime.tv_sec * 1000000ll + usage->ru_stime.tv_usec;
    char json[320];
    int size = snprintf(json, sizeof json,
                        "{\"code\":%d,\"signal\":%d,\"timed_out\":%s,\"oom_killed\":%s,\"wall_us\":%lld,\"cpu_us\":%lld,\"max_rss_kb\":%ld}",
                        code, signal, c->timed_out ? "true" : "false", code && oom_kills() > c->oom_before ? "true" : "false",
                        (long long)(now - c->started_us), (long long)cpu, usage->ru_maxrss);
    send_frame('X', c->id, json, (size_t)size);
    c->exited = true;
    c->deadline_us = 0;
    c->drain_end_us = now + DRAIN_END_MS * 1000;
    if (c->out < 0 || ioctl(c->out, FIONREAD, &c->backlog)) c->backlog = 0;
    expect_more(c, now);
    close_fd(&c->in);
    c->pending_size = 0;
    if (c->out >= 0 && c->credit) read_output(c);
}

static void read_report(struct command *c) {
    struct report report;
    ssize_t got = read(c->status, &report, sizeof report);
    if (got < 0 && errno == EINTR) return;
    if (got != sizeof report) {
        close_fd(&c->status);
        return;
    }
    switch (report.kind) {
    case BEGUN:
        c->begun = true;
        if (c->doomed) kill_tree(c->supervisor, SIGKILL);
        send_frame('B', c->id, "", 0);
        break;
    case FAILED:
        send_failed(c->id, report.stage, report.error);
        if (c->supervisor) waitpid(c->supervisor, NULL, 0);
        forget(c);
        break;
    case EXITED: exited(c, report.status, &report.usage, false); break;
    }
}

/* The supervisor is the last of its tree, unless somebody killed it: then its orphans are ours, and nobody's. */
static void supervisor_ended(struct command *c, int status) {
    c->supervisor = 0;
    if (WIFSIGNALED(status)) {
        pid_t others[MAX_COMMANDS];
        size_t count = 0;
        for (struct command *o = commands; o < commands + MAX_COMMANDS; o++)
            if (o->used && o->supervisor) others[count++] = o->supervisor;
        kill_orphans(others, count);
    }
    while (c->used && c->status >= 0) read_report(c);
    if (!c->used) return;
    if (!c->begun) {
        send_failed(c->id, AT_FORK, ECHILD);
        forget(c);
        return;
    }
    exited(c, 0, &(struct rusage){0}, true);
}

static void reap(void) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (struct command *c = commands; c < commands + MAX_COMMANDS; c++)
            if (c->used && c->supervisor == pid) supervisor_ended(c, status);
}

/* A command that has not begun yet may not be there to be killed: then it is as soon as it is. */
static void signal_tree(struct command *c, int number) {
    if (!c->supervisor) return;
    if (number == SIGKILL && !c->begun) c->doomed = true;
    kill_tree(c->supervisor, number);
}

static void on_timers(struct command *c, int64_t now) {
    if (c->deadline_us && now >= c->deadline_us) {
        c->timed_out = true;
        c->deadline_us = 0;
        signal_tree(c, SIGKILL);
    }
    if (c->exited && !c->done && c->credit && now >= c->drained_us) end_output(c);
    if (c->exited && c->done && !c->supervisor) {
        send_frame('G', c->id, "", 0);
        forget(c);
    }
}

/* --- frames from the host ------------------------------------------------------------------------------------------- */

static void on_frame(char type, uint32_t id, char *payload, size_t size) {
    if (type == 'S') return spawn(id, payload, size);
    if (type == 'P') return send_frame('p', id, payload, size);
    if (type == 'A') return answer_patch(id, payload, size);
    struct command *c = find(id);
    if (!c) return; /* it ended while the frame was on its way */
    if (type == 'I') take_stdin(c, payload, size);
    else if (type == 'E') c->stdin_ends = true, write_stdin(c);
    else if (type == 'C' && size == 4) {
        c->credit += get_u32(payload);
        if (c->exited) expect_more(c, now_us());
    } else if (type == 'K' && size == 1) signal_tree(c, (unsigned char)*payload);
    else if (type == 'W' && size == 4 && c->tty && c->in >= 0) {
        uint32_t both = get_u32(payload);
        struct winsize window = {.ws_row = (unsigned short)(both >> 16), .ws_col = (unsigned short)both};
        ioctl(c->in, TIOCSWINSZ, &window);
    }
}

static void read_frames(void) {
    if (received.room - received.end < CHUNK) {
        received.room = received.end + CHUNK * 2;
        if (!(received.data = realloc(received.data, received.room))) leave(70);
    }
    ssize_t got = read(from_host, received.data + received.end, CHUNK);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) leave(0); /* the worker is gone */
    received.end += (size_t)got;
    heard_us = now_us();
    size_t at = 0;
    while (received.end - at >= 4) {
        size_t size = get_u32(received.data + at);
        if (size < 5 || size > MAX_FRAME) leave(76);
        if (received.end - at < size + 4) break;
        char *frame = received.data + at + 4;
        on_frame(frame[0], get_u32(frame + 1), frame + 5, size - 5);
        at += size + 4;
    }
    received.end -= at;
    memmove(received.data, received.data + at, received.end);
}

static int next_timer_ms(int64_t now) {
    int64_t next = heard_us + silence_us, patches = patch_timers_us(now);
    if (patches < next) next = patches;
    for (struct command *c = commands; c < commands + MAX_COMMANDS; c++) {
        if (!c->used) continue;
        if (c->deadline_us && c->deadline_us < next) next = c->deadline_us;
        if (c->exited && !c->done && c->credit && c->drained_us < next) next = c->drained_us;
    }
    return next <= now ? 0 : (int)((next - now + 999) / 1000);
}

static void turn(void) {
    struct pollfd fds[3 + MAX_COMMANDS * 3 + MAX_REQUESTS + 1];
    struct { struct command *command; void (*act)(struct command *); } acts[3 + MAX_COMMANDS * 3];
    nfds_t count = 3;
    bool full = is_full();
    fds[0] = (struct pollfd){.fd = full ? -1 : from_host, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = sending.start < sending.end ? to_host : -1, .events = POLLOUT};
    fds[2] = (struct pollfd){.fd = signals, .events = POLLIN};
    for (struct command *c = commands; c < commands + MAX_COMMANDS; c++) {
        if (!c->used) continue;
#define WATCH(descriptor, what, action) (acts[count].command = c, acts[count].act = action, fds[count++] = (struct pollfd){.fd = descriptor, .events = what})
        if (c->status >= 0) WATCH(c->status, POLLIN, read_report);
        if (c->out >= 0 && !full && (c->credit || c->done)) WATCH(c->out, POLLIN, read_output);
        if (c->in >= 0 && c->pending_size) WATCH(c->in, POLLOUT, write_stdin);
#undef WATCH
    }
    nfds_t patches = watch_patches(fds + count);
    if (poll(fds, count + patches, next_timer_ms(now_us())) < 0 && errno != EINTR) leave(72);
    for (nfds_t i = 3; i < count; i++) {
        struct command *c = acts[i].command; /* an earlier act may have closed the descriptor */
        if (fds[i].revents && c->used && (fds[i].fd == c->status || fds[i].fd == c->out || fds[i].fd == c->in)) acts[i].act(c);
    }
    act_on_patches(fds + count, patches); /* before the dead are reaped: who asks may have ended already */
    struct signalfd_siginfo info;
    while (fds[2].revents && read(signals, &info, sizeof info) == sizeof info)
        if (info.ssi_signo == SIGTERM) leave(0);
    if (fds[2].revents) reap();
    if (fds[0].revents) read_frames();
    int64_t now = now_us();
    if (now >= heard_us + silence_us) leave(75); /* the worker is frozen, or the network between is */
    for (struct command *c = commands; c < commands + MAX_COMMANDS; c++)
        if (c->used) on_timers(c, now);
    flush();
}

int main(int argc, char **argv) {
    silence_us = (argc > 1 ? atoll(argv[1]) : 60) * 1000000ll;
    if (silence_us <= 0) return fputs("usage: boxd [SECONDS OF SILENCE AFTER WHICH IT ENDS]\n", stderr), 64;
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (struct command *c = commands; c < commands + MAX_COMMANDS; c++) *c = UNUSED;

    /* Off 0 and 1 and closed on exec: no command can ever hold the control stream. */
    from_host = fcntl(0, F_DUPFD_CLOEXEC, 10);
    to_host = fcntl(1, F_DUPFD_CLOEXEC, 10);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (from_host < 0 || to_host < 0 || null < 0) return 71;
    dup2(null, 0), dup2(null, 1);
    fcntl(from_host, F_SETFL, O_NONBLOCK);
    fcntl(to_host, F_SETFL, O_NONBLOCK);

    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGTERM);
    sigprocmask(SIG_BLOCK, &watched, NULL);
    signals = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);

    listen_for_patches();
    char hello[1024];
    int size = hello_json(hello, sizeof hello);
    heard_us = now_us();
    send_frame('H', 0, hello, (size_t)size);
    flush();
    for (;;) turn();
}
