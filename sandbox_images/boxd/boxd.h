/* boxd: PID 1 of a sandbox. One stream of frames on stdin/stdout drives any number of commands.
 *
 *   frame    u32 length (of what follows) | u8 type | u32 id | payload         all integers big endian
 *
 *   host -> box                                     box -> host
 *   S spawn        records, see struct spec         H hello     JSON: what confinement really holds
 *   I stdin        bytes, within the window         B begun     the program was executed
 *   E stdin ends                                    F failed    u8 stage | u32 errno; ends the id
 *   C credit       u32 more bytes of output         O output    bytes, within the credit
 *   W resize       u16 rows | u16 columns           T taken     u32 bytes of stdin that the command got
 *   K signal       u8, to the whole tree            U unusable  the command closed its stdin
 *   P ping         sign of life                     X exit      JSON: how the main process ended
 *                                                   D done      no more output of this id
 *   A answer       to an apply_patch request,       G gone      nothing of the tree is left; ends the id
 *                  for its program (see patches.c)  p pong
 *   N              reserved: network streams        A apply     u8 kind: b begun (u32 command), d data, w whole, g gone;
 *                                                               its ids are requests, not commands
 */
#ifndef BOXD_H
#define BOXD_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

enum {
    PROTOCOL = 1,
    MAX_COMMANDS = 256,       /* each needs two processes; the container's pids limit is 512 */
    MAX_FRAME = 4 << 20,      /* argv and environment of one command fit in well */
    STDIN_WINDOW = 256 << 10, /* bytes that the host may send ahead of T frames */
    OUT_HIGH = 1 << 20,       /* unsent bytes at which no more is read from anywhere */
    CHUNK = 64 << 10,
    DRAIN_MS = 100,           /* silence after the exit that ends a command's output */
    DRAIN_END_MS = 1000,      /* what still comes later than this after the exit is a daemon's */
    MAX_REQUEST = (2 << 20) + (8 << 10), /* a patch and its folder */
    MAX_REQUESTS = 16,        /* of apply_patch at once; more wait in the socket's queue */
    REQUEST_MS = 10000,       /* for a request to come in, and for its answer to be read */
};

enum stage { AT_FORK, AT_TTY, AT_CWD, AT_LIMIT, AT_CONFINE, AT_EXEC, AT_SPEC };

/* A parsed spawn frame; strings point into the frame. Records are `key string NUL`. */
struct spec {
    char **argv;     /* a: program and arguments, or arguments of the builtin */
    char **env;      /* e: NAME=value, laid over boxd's own environment */
    char **readable; /* R: Landlock: read and execute below */
    char **writable; /* W: Landlock: everything below */
    char **limits;   /* r: name:value */
    char **protect;  /* p: names that apply_files refuses below its roots */
    char *cwd;       /* c */
    char *builtin;   /* b: read | apply instead of a program */
    bool filter;     /* s: seccomp filter */
    bool tty;        /* t: rows columns */
    unsigned rows, columns;
    size_t credit;   /* k: first output credit */
    int64_t wall_ms; /* w: 0 for none */
};

/* What a supervisor tells PID 1 over its pipe; small enough to be written in one piece. */
struct report {
    enum { BEGUN, FAILED, EXITED } kind;
    enum stage stage;
    int error;
    int status;
    struct rusage usage;
};

/* main.c */
int64_t now_us(void);
char *reserve(size_t size);                               /* room for a frame; its payload begins at 9 */
void frame_in_place(char type, uint32_t id, size_t size); /* turns what was written there into a frame */
void send_frame(char type, uint32_t id, const void *payload, size_t size);
bool is_full(void);                                       /* nothing more may be read from anybody now */
uint32_t command_of(pid_t supervisor);                    /* 0: it is nobody's */
void put_u32(char *at, uint32_t value);

/* confine.c */
int landlock_abi(void);
int confine(const struct spec *spec);      /* 0, or -1 with errno; irreversible for the calling process */
int apply_limits(const struct spec *spec);
int hello_json(char *out, size_t size);
long oom_kills(void);                      /* kills by the memory controller so far, -1 if unknown */

/* tree.c */
int kill_tree(pid_t top, int signal);      /* every descendant of `top`, not `top` itself; how many were hit */
pid_t supervisor_of(pid_t pid);            /* the child of ours that it is below of; 0: none, or it is gone */
void kill_orphans(const pid_t *supervisors, size_t count);
void supervise(const struct spec *spec, int in, int out, int status) __attribute__((noreturn));

/* files.c */
int run_builtin(const struct spec *spec);  /* stdin, stdout; returns the exit code */

/* patches.c */
void listen_for_patches(void);
nfds_t watch_patches(struct pollfd *fds);  /* at most MAX_REQUESTS + 1 */
void act_on_patches(const struct pollfd *fds, nfds_t count);
void answer_patch(uint32_t id, const char *answer, size_t size);
int64_t patch_timers_us(int64_t now);      /* ends what is late; when the next one is, INT64_MAX for never */

#endif
