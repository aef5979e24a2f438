/* File operations, run as a command of their own under the policy that the caller named.
 *
 * read   argv: root, path below it, limit.  stdout: '+' | u32 mode | bytes
 * apply  argv: roots.  stdin: operations, then 'e'.  stdout: '+'
 *          operation  'w' | 'd', u32 mode or KEEP_MODE, u32 root number, u32 length + path, u32 length + data
 * Failure is '-' | u8 reason | u32 number of the operation | u32 errno and exit code 1, with nothing changed.
 *
 * Every path is opened with openat2 beneath its root, so neither `..` nor a symlink, not even one that is swapped in
 * meanwhile, leads out.
 */
#define _GNU_SOURCE
#include "boxd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { KEEP_MODE = -1, EXCHANGE = 2, NO_REPLACE = 1, MAX_DATA = 1 << 30 };
enum reason { MISSING = 'm', NOT_A_FILE = 'f', ESCAPE = 'e', TOO_LARGE = 'l', PROTECTED = 'p', NO_SPACE = 's', OTHER = 'o' };

struct change {
    int directory;
    char *name, *spare;  /* spare: the staged file before the commit, what was replaced or deleted after it */
    bool delete, staged, committed, replaced;
};
struct made { int parent; char *name; };

static const struct spec *spec;
static struct change *changes;
static size_t change_count;
static struct made *made;
static size_t made_count;

/* --- helpers -------------------------------------------------------------------------------------------------------- */

static void *more(void *list, size_t count, size_t size) {
    void *grown = realloc(list, (count + 1) * size);
    if (!grown) _exit(70);
    return grown;
}

static char *copy(const char *text) {
    char *copied = strdup(text);
    if (!copied) _exit(70);
    return copied;
}

static void write_all(const void *data, size_t size) {
    for (const char *at = data; size;) {
        ssize_t sent = write(1, at, size);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) _exit(71);
        at += sent, size -= (size_t)sent;
    }
}

static bool read_all(void *data, size_t size) {
    for (char *at = data; size;) {
        ssize_t got = read(0, at, size);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got, size -= (size_t)got;
    }
    return true;
}

static bool read_number(uint32_t *value) {
    unsigned char bytes[4];
    if (!read_all(bytes, sizeof bytes)) return false;
    *value = (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
    return true;
}

static int beneath(int root, const char *path, uint64_t flags, uint64_t resolve) {
    struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | resolve};
    int fd;
    do fd = (int)syscall(SYS_openat2, root, *path ? path : ".", &how, sizeof how);
    while (fd < 0 && (errno == EAGAIN || errno == EINTR)); /* EAGAIN: a rename raced with the look-up */
    return fd;
}

/* Where an open descriptor really is, whatever symlinks led there. */
static bool real_path(int fd, char path[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size <= 0) return false;
    path[size] = 0;
    return true;
}

static enum reason reason_of(int error) {
    switch (error) {
    case ENOENT: return MISSING;
    case EISDIR: case ENOTDIR: case ENOTEMPTY: return NOT_A_FILE;
    case EXDEV: case ELOOP: return ESCAPE;
    case EACCES: case EPERM: case EROFS: case EBUSY: return PROTECTED;
    case ENOSPC: case EDQUOT: return NO_SPACE;
    case EFBIG: case ENAMETOOLONG: return TOO_LARGE;
    default: return OTHER;
    }
}

static int refuse(enum reason reason, size_t number, int error) {
    uint32_t values[2] = {(uint32_t)number, (uint32_t)error};
    unsigned char answer[10] = {'-', (unsigned char)reason};
    for (int i = 0; i < 8; i++) answer[2 + i] = (unsigned char)(values[i / 4] >> (24 - 8 * (i % 4)));
    write_all(answer, sizeof answer);
    return 1;
}

/* --- read ----------------------------------------------------------------------------------------------------------- */

static int read_file(char **argv) {
    int root = open(argv[0], O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = root < 0 ? -1 : beneath(root, argv[1], O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0) return refuse(errno == ENOTDIR ? MISSING : reason_of(errno), 0, errno);
    struct stat st;
    if (fstat(fd, &st)) return refuse(OTHER, 0, errno);
    if (!S_ISREG(st.st_mode)) return refuse(NOT_A_FILE, 0, EISDIR);
    if (st.st_size > atoll(argv[2])) return refuse(TOO_LARGE, 0, EFBIG);
    unsigned mode = st.st_mode & 0777;
    unsigned char head[5] = {'+', 0, 0, (unsigned char)(mode >> 8), (unsigned char)mode};
    write_all(head, sizeof head);
    char chunk[CHUNK];
    for (off_t left = st.st_size; left > 0;) { /* what is appended meanwhile is not part of the answer */
        ssize_t got = read(fd, chunk, left < CHUNK ? (size_t)left : CHUNK);
        if (got <= 0) break;
        write_all(chunk, (size_t)got);
        left -= got;
    }
    return 0;
}

/* --- apply ---------------------------------------------------------------------------------------------------------- */

static bool is_protected(const char *path) {
    for (const char *part = path; *part; part += strspn(part, "/")) {
        size_t size = strcspn(part, "/");
        for (char **name = spec->protect; *name; name++) /* the workspace may lie on a file system that ignores case */
            if (strlen(*name) == size && !strncasecmp(*name, part, size)) return true;
        part += size;
    }
    return false;
}

/* The directory `path` below `root`, made with its parents where it is missing. -1 with errno. */
static int directory_of(int root, const char *path) {
    int fd = beneath(root, path, O_PATH | O_DIRECTORY, 0);
    if (fd >= 0 || errno != ENOENT) return fd;
    char parent[PATH_MAX];
    if (strlen(path) >= sizeof parent) return errno = ENAMETOOLONG, -1;
    strcpy(parent, path);
    char *slash = strrchr(parent, '/');
    const char *name = slash ? path + (slash - parent) + 1 : path;
    if (slash) *slash = 0;
    int above = directory_of(root, slash ? parent : "");
    if (above < 0) return -1;
    if (mkdirat(above, name, 0755)) return -1; /* EEXIST: a dangling symlink, or a race */
    made = more(made, made_count, sizeof *made);
    made[made_count++] = (struct made){above, copy(name)};
    return beneath(above, name, O_PATH | O_DIRECTORY, RESOLVE_NO_SYMLINKS);
}

/* Fills `change` with the place of `path`; a symlink at its end is followed by a write and removed by a delete. */
static enum reason locate(int root, const char *path, struct change *change, struct stat *st, bool *exists) {
    char top[PATH_MAX], real[PATH_MAX], parent[PATH_MAX];
    if (!*path || strlen(path) >= PATH_MAX) return ESCAPE;
    if (is_protected(path)) return PROTECTED;
    strcpy(parent, path);
    char *slash = strrchr(parent, '/');
    if (slash) *slash = 0;
    change->name = copy(slash ? slash + 1 : path);
    change->directory = directory_of(root, slash ? parent : "");
    if (change->directory < 0) return errno == EEXIST ? NOT_A_FILE : reason_of(errno);
    if (!real_path(root, top) || !real_path(change->directory, real)) return OTHER;
    size_t size = strcmp(top, "/") ? strlen(top) : 0;
    if (strncmp(real, top, size)) return errno = EXDEV, ESCAPE; /* it was moved out of the root meanwhile */
    if (is_protected(real + size)) return PROTECTED;
    *exists = fstatat(change->directory, change->name, st, AT_SYMLINK_NOFOLLOW) == 0;
    if (!*exists) return errno == ENOENT ? 0 : reason_of(errno);
    if (S_ISREG(st->st_mode) || (S_ISLNK(st->st_mode) && change->delete)) return 0;
    if (!S_ISLNK(st->st_mode)) return errno = EISDIR, NOT_A_FILE;
    int target = beneath(root, path, O_PATH, 0);
    if (target < 0) return errno == ENOENT ? NOT_A_FILE : reason_of(errno);
    bool known = real_path(target, real) && !strncmp(real, top, size);
    close(target);
    return known ? locate(root, real + size + 1, change, st, exists) : ESCAPE;
}

static enum reason stage(struct change *change, mode_t mode, uint32_t size) {
    char chunk[CHUNK];
    int fd = openat(change->directory, change->spare, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return reason_of(errno);
    change->staged = true;
    enum reason reason = 0;
    for (uint32_t left = size; left && !reason;) {
        uint32_t part = left < CHUNK ? left : CHUNK;
        if (!read_all(chunk, part)) errno = EPIPE, reason = OTHER;
        for (uint32_t at = 0; at < part && !reason;) {
            ssize_t written = write(fd, chunk + at, part - at);
            if (written < 0) reason = reason_of(errno);
            else at += (uint32_t)written;
        }
        left -= part;
    }
    if (!reason && fchmod(fd, mode & 0777)) reason = reason_of(errno);
    if (close(fd) && !reason) reason = reason_of(errno);
    return reason;
}

static int rename_with(int directory, const char *from, const char *to, unsigned flags) {
    if (!syscall(SYS_renameat2, directory, from, directory, to, flags)) return 0;
    if (errno != EINVAL) return -1;
    /* A folder that a virtual machine shares from another kernel may know no flags; there it is done in steps. */
    struct stat st;
    if (flags == NO_REPLACE) {
        if (!fstatat(directory, to, &st, AT_SYMLINK_NOFOLLOW)) return errno = EEXIST, -1;
        return renameat(directory, from, directory, to);
    }
    char aside[80];
    snprintf(aside, sizeof aside, ".patchyard-%d.aside", getpid());
    if (renameat(directory, to, directory, aside)) return -1;
    if (renameat(directory, from, directory, to)) {
        int error = errno;
        renameat(directory, aside, directory, to);
        return errno = error, -1;
    }
    return renameat(directory, aside, directory, from);
}

static enum reason commit(struct change *change) {
    int directory = change->directory;
    struct stat st;
    if (change->delete) {
        if (rename_with(directory, change->name, change->spare, NO_REPLACE)) return reason_of(errno);
        change->committed = change->replaced = true;
    } else if (!rename_with(directory, change->spare, change->name, EXCHANGE)) {
        change->committed = change->replaced = true;
    } else if (errno != ENOENT || rename_with(directory, change->spare, change->name, NO_REPLACE)) {
        return reason_of(errno);
    } else {
        change->committed = true;
        return 0;
    }
    /* A directory may have been swapped in since the look. */
    if (fstatat(directory, change->spare, &st, AT_SYMLINK_NOFOLLOW) || S_ISDIR(st.st_mode)) return errno = EISDIR, NOT_A_FILE;
    return 0;
}

static void undo(void) {
    for (size_t i = change_count; i-- > 0;) {
        struct change *change = &changes[i];
        if (change->committed)
            rename_with(change->directory, change->delete ? change->spare : change->name, change->delete ? change->name : change->spare,
                        change->replaced && !change->delete ? EXCHANGE : NO_REPLACE);
        if (change->staged) unlinkat(change->directory, change->spare, 0);
    }
    while (made_count-- > 0) unlinkat(made[made_count].parent, made[made_count].name, AT_REMOVEDIR);
}

/* Reads one operation and prepares it. OTHER with errno 0 at the end of the list. */
static enum reason take_operation(char kind, const int *roots, size_t root_count) {
    uint32_t mode, root, path_size, size;
    char path[PATH_MAX], spare[64];
    if (!read_number(&mode) || !read_number(&root) || !read_number(&path_size) || root >= root_count || path_size >= sizeof path ||
        !read_all(path, path_size) || !read_number(&size) || size > MAX_DATA)
        return errno = EPROTO, OTHER;
    path[path_size] = 0;
    changes = more(changes, change_count, sizeof *changes);
    struct change *change = &changes[change_count++];
    snprintf(spare, sizeof spare, ".patchyard-%d-%zu.tmp", getpid(), change_count);
    *change = (struct change){.directory = -1, .spare = copy(spare), .delete = kind == 'd'};
    struct stat st;
    bool exists = false;
    enum reason reason = locate(roots[root], path, change, &st, &exists);
    if (reason || change->delete) return reason;
    return stage(change, (int)mode != KEEP_MODE ? mode : exists ? st.st_mode : 0644, size);
}

static int apply_files(char **argv) {
    int roots[64];
    size_t root_count = 0, number = 0;
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) { /* one directory is held per operation */
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (; argv[root_count] && root_count < 64; root_count++) roots[root_count] = open(argv[root_count], O_PATH | O_DIRECTORY | O_CLOEXEC);
    enum reason reason = 0;
    char kind = 0;
    for (; !reason; number++) {
        if (!read_all(&kind, 1)) errno = EPIPE, reason = OTHER; /* the host gave up in the middle */
        else if (kind == 'e') break;
        else reason = take_operation(kind, roots, root_count);
        if (reason) break;
    }
    for (size_t i = 0; i < change_count && !reason; i++)
        if ((reason = commit(&changes[i]))) number = i;
    if (reason) {
        int error = errno;
        undo();
        return refuse(reason, number, error);
    }
    for (size_t i = 0; i < change_count; i++)
        if (changes[i].replaced) unlinkat(changes[i].directory, changes[i].spare, 0);
    write_all("+", 1);
    return 0;
}

int run_builtin(const struct spec *asked) {
    spec = asked;
    if (!strcmp(asked->builtin, "read") && asked->argv[1] && asked->argv[2]) return read_file(asked->argv);
    if (!strcmp(asked->builtin, "apply")) return apply_files(asked->argv);
    return refuse(OTHER, 0, EINVAL);
}
