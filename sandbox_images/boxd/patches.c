/* Requests of the apply_patch program (apply_patch.c): PID 1 adds whose they are, and relays them unread. */
#define _GNU_SOURCE
#include "boxd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PEER_PIDFD = 77 };

static struct request {
    uint32_t id; /* 0: free */
    int fd;
    bool whole;
    char *answer;
    size_t received, answer_size, answer_sent;
    int64_t deadline_us; /* 0: none, while the host works on it */
} requests[MAX_REQUESTS], *watched[MAX_REQUESTS + 1];

static int listener = -1;
static uint32_t last_id;

/* An abstract name belongs to the box's network namespace: it has no file that a command could remove or replace. */
void listen_for_patches(void) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *name = getenv("BOXD_SOCKET"); /* several without a container */
    int length = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "%s", name ? name : "patchyard-boxd");
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (!bind(fd, (struct sockaddr *)&at, (socklen_t)(sizeof at.sun_family + 1) + (socklen_t)length) && !listen(fd, 64)) listener = fd;
}

static void end_request(struct request *r) {
    if (!r->answer) send_frame('A', r->id, "g", 1);
    free(r->answer);
    close(r->fd);
    *r = (struct request){0};
}

/* The command that a connection comes from; 0 when that can't be told for certain. The kernel recorded who connected, and with the
 * pidfd (Linux 6.5) it is certain that this process lives still, so that its number is not another one's by now. */
static uint32_t sender(int fd) {
    struct ucred peer;
    int process = -1;
    socklen_t size = sizeof peer, process_size = sizeof process;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size)) return 0;
    if (getsockopt(fd, SOL_SOCKET, PEER_PIDFD, &process, &process_size) && errno != ENOPROTOOPT) return 0;
    uint32_t command = command_of(supervisor_of(peer.pid));
    if (process >= 0 && poll(&(struct pollfd){.fd = process, .events = POLLIN}, 1, 0)) command = 0;
    if (process >= 0) close(process);
    return command;
}

static void take_request(void) {
    struct request *r = requests;
    while (r < requests + MAX_REQUESTS && r->id) r++;
    if (r == requests + MAX_REQUESTS) return;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    uint32_t command = sender(fd);
    if (!command) {
        close(fd);
        return;
    }
    last_id = last_id % UINT32_MAX + 1;
    *r = (struct request){.id = last_id, .fd = fd, .deadline_us = now_us() + REQUEST_MS * 1000ll};
    char begun[5] = {'b'};
    put_u32(begun + 1, command);
    send_frame('A', r->id, begun, sizeof begun);
}

static void relay(struct request *r) {
    if (is_full()) return;
    char *at = reserve(10 + CHUNK) + 9;
    ssize_t got = read(r->fd, at + 1, CHUNK);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got > 0) r->received += (size_t)got;
    if (got < 0 || r->received > MAX_REQUEST) {
        end_request(r);
        return;
    }
    *at = got ? 'd' : 'w';
    frame_in_place('A', r->id, 1 + (size_t)got);
    if (!got) r->whole = true, r->deadline_us = 0;
}

static void write_answer(struct request *r) {
    ssize_t sent = write(r->fd, r->answer + r->answer_sent, r->answer_size - r->answer_sent);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent > 0) r->answer_sent += (size_t)sent;
    if (sent < 0 || r->answer_sent == r->answer_size) end_request(r);
}

void answer_patch(uint32_t id, const char *answer, size_t size) {
    struct request *r = requests;
    while (r < requests + MAX_REQUESTS && r->id != id) r++;
    if (!id || r == requests + MAX_REQUESTS || r->answer || !(r->answer = malloc(size + 1))) return;
    memcpy(r->answer, answer, size);
    r->answer_size = size;
    r->deadline_us = now_us() + REQUEST_MS * 1000ll;
    write_answer(r);
}

nfds_t watch_patches(struct pollfd *fds) {
    nfds_t count = 0;
    bool full = is_full(), room = false;
    for (struct request *r = requests; r < requests + MAX_REQUESTS; r++) {
        if (!r->id) room = true;
        if (!r->id || (full && !r->whole && !r->answer)) continue;
        watched[count] = r;
        fds[count++] = (struct pollfd){.fd = r->fd, .events = r->answer ? POLLOUT : r->whole ? 0 : POLLIN};
    }
    if (listener >= 0 && room && !full) {
        watched[count] = NULL;
        fds[count++] = (struct pollfd){.fd = listener, .events = POLLIN};
    }
    return count;
}

void act_on_patches(const struct pollfd *fds, nfds_t count) {
    for (nfds_t i = 0; i < count; i++) {
        struct request *r = watched[i];
        if (!fds[i].revents || (r && !r->id)) continue;
        if (!r) take_request();
        else if (r->answer) write_answer(r);
        else if (r->whole) end_request(r); /* nothing was asked for: the program is gone */
        else relay(r);
    }
}

int64_t patch_timers_us(int64_t now) {
    int64_t next = INT64_MAX;
    for (struct request *r = requests; r < requests + MAX_REQUESTS; r++) {
        if (r->deadline_us && now >= r->deadline_us) end_request(r);
        if (r->deadline_us && r->deadline_us < next) next = r->deadline_us;
    }
    return next;
}
