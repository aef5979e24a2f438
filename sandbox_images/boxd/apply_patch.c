/* The apply_patch program of a box: hands the patch and the current folder to boxd, prints what comes back. Applies nothing itself.
 *
 *   request  u32 size of folder | u32 size of patch | folder | patch, then the end of writing       integers big endian
 *   answer   u8 exit code | u32 size of stdout | stdout | stderr, then the end
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_PATCH = 2 << 20, REQUEST_HEAD = 8, ANSWER_HEAD = 5, MAX_ANSWER = 1 << 20 };

static char request[REQUEST_HEAD + PATH_MAX + MAX_PATCH + 1], answer[MAX_ANSWER], folder[PATH_MAX];

static int complain(int code, const char *text) {
    fprintf(stderr, "%s\n", text);
    return code;
}

static void put_u32(char *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (char)(value >> (24 - 8 * i));
}

static uint32_t get_u32(const char *at) {
    const unsigned char *p = (const unsigned char *)at;
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool put(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t sent = write(fd, data, size);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return false;
        data += sent, size -= (size_t)sent;
    }
    return true;
}

/* Bytes up to the end, at most `most`; -1 on an error. */
static ssize_t get(int fd, char *into, size_t most) {
    size_t size = 0;
    while (size < most) {
        ssize_t got = read(fd, into + size, most - size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (!got) break;
        size += (size_t)got;
    }
    return (ssize_t)size;
}

/* boxd's socket (patches.c). A command that sets BOXD_SOCKET only cuts itself off. */
static int reach_boxd(void) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *name = getenv("BOXD_SOCKET");
    int length = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "%s", name ? name : "patchyard-boxd");
    if ((size_t)length >= sizeof at.sun_path - 1) return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) + (socklen_t)length;
    return fd >= 0 && !connect(fd, (struct sockaddr *)&at, size) ? fd : -1;
}

static int show(const char *from, size_t size) {
    size_t out = get_u32(from + 1), err = size - ANSWER_HEAD - out;
    bool written = put(1, from + ANSWER_HEAD, out);
    return put(2, from + ANSWER_HEAD + out, err) && written ? (unsigned char)*from : 1;
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    if (argc > 2) return complain(2, "Error: apply_patch accepts exactly one argument.");
    if (!getcwd(folder, sizeof folder)) return complain(1, "apply_patch: the current folder is gone. Nothing was changed.");
    size_t head = REQUEST_HEAD + strlen(folder);
    ssize_t size = argc == 2 ? (ssize_t)strlen(argv[1]) : get(0, request + head, MAX_PATCH + 1);
    if (size < 0) return complain(1, "apply_patch: standard input can't be read. Nothing was changed.");
    if (!size && argc < 2) return complain(2, "Usage: apply_patch 'PATCH'\n       echo 'PATCH' | apply_patch");
    if (size > MAX_PATCH) return complain(1, "apply_patch: the patch is over 2 MiB. Nothing was changed. Apply it in parts.");
    if (argc == 2) memcpy(request + head, argv[1], (size_t)size);
    put_u32(request, (uint32_t)strlen(folder));
    put_u32(request + 4, (uint32_t)size);
    memcpy(request + REQUEST_HEAD, folder, strlen(folder));
    int fd = reach_boxd();
    if (fd < 0) return complain(1, "apply_patch: the sandbox takes no patches here. Nothing was changed.");
    ssize_t got = put(fd, request, head + (size_t)size) && !shutdown(fd, SHUT_WR) ? get(fd, answer, sizeof answer) : -1;
    if (got < ANSWER_HEAD || get_u32(answer + 1) > (size_t)got - ANSWER_HEAD)
        return complain(1, "apply_patch: no answer came. Look at the files before you go on.");
    return show(answer, (size_t)got);
}
