/* A disk that misbehaves at the n-th operation on files below one folder.

   Preloaded into the command. It takes its orders from variables, and out of the environment, so that what the command
   starts is not ordered about:
     DISK_FOLDER   the folder, as an absolute path
     DISK_TRACE    a file that gets a line for each operation
     DISK_KILL_AT  before the n-th operation the process kills itself; with DISK_HALF=1 after half of it, if it writes
     DISK_FAIL_AT  the n-th write and all after it fail with DISK_ERRNO, while the file DISK_FULL exists
     DISK_SHADOW   a folder with what a loss of power would leave: a file's content as it was synced last */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX], shadow[PATH_MAX], full[PATH_MAX];
static int trace = -1, half;
static long kill_at = -1, fail_at = -1, fail_errno = ENOSPC;
static atomic_long count;

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_rename)(const char *, const char *);
static int (*real_unlink)(const char *);
static int (*real_ftruncate)(int, off_t);
static int (*real_truncate)(const char *, off_t);

static void take(char *to, const char *name) {
    const char *value = getenv(name);
    if (value) snprintf(to, PATH_MAX, "%s", value);
    unsetenv(name);
}

static long number(const char *name, long otherwise) {
    char text[PATH_MAX] = "";
    take(text, name);
    return *text ? atol(text) : otherwise;
}

__attribute__((constructor)) static void begin(void) {
    char path[PATH_MAX] = "";
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_open = dlsym(RTLD_NEXT, "open64");
    real_openat = dlsym(RTLD_NEXT, "openat64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_rename = dlsym(RTLD_NEXT, "rename");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_truncate = dlsym(RTLD_NEXT, "truncate64");
    take(folder, "DISK_FOLDER");
    take(shadow, "DISK_SHADOW");
    take(full, "DISK_FULL");
    take(path, "DISK_TRACE");
    kill_at = number("DISK_KILL_AT", -1);
    fail_at = number("DISK_FAIL_AT", -1);
    fail_errno = number("DISK_ERRNO", ENOSPC);
    half = (int)number("DISK_HALF", 0);
    if (*path) trace = real_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    unsetenv("LD_PRELOAD");
}

/* The path below the folder, or nothing for files that are not ours. */
static const char *below(const char *path) {
    size_t length = strlen(folder);
    return *folder && !strncmp(path, folder, length) && path[length] == '/' ? path + length + 1 : NULL;
}

static const char *of_file(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return NULL;
    path[length] = 0;
    return below(path);
}

static const char *of_path(const char *given, char *path) {
    if (*given == '/') {
        snprintf(path, PATH_MAX, "%s", given);
    } else {
        char here[PATH_MAX / 2];
        if (!getcwd(here, sizeof here)) return NULL;
        snprintf(path, PATH_MAX, "%s/%s", here, given);
    }
    return below(path);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Count an operation, and die if it is the one. A write that is to be torn dies by itself, after its half. */
static int counted(const char *what, const char *name, int torn_writes) {
    long n = atomic_fetch_add(&count, 1) + 1;
    if (trace >= 0) {
        char line[PATH_MAX];
        int length = snprintf(line, sizeof line, "%ld %s %s\n", n, what, name);
        real_write(trace, line, (size_t)length);
    }
    if (n != kill_at) return 0;
    if (!(half && torn_writes)) die();
    return 1;
}

static int fails(void) {
    if (fail_at < 0 || atomic_load(&count) < fail_at) return 0;
    if (*full && access(full, F_OK)) return 0;
    errno = (int)fail_errno;
    return 1;
}

static void copy(const char *from, const char *to) {
    char part[PATH_MAX], buffer[1 << 16], *slash = part;
    snprintf(part, sizeof part, "%s", to);
    while ((slash = strchr(slash + 1, '/'))) {
        *slash = 0;
        mkdir(part, 0755);
        *slash = '/';
    }
    snprintf(part, sizeof part, "%s.part", to);
    int source = real_open(from, O_RDONLY), target = real_open(part, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ssize_t length;
    while (source >= 0 && target >= 0 && (length = read(source, buffer, sizeof buffer)) > 0)
        real_write(target, buffer, (size_t)length);
    close(source);
    close(target);
    real_rename(part, to);
}

static void synced(const char *path, const char *name) {
    char to[2 * PATH_MAX];
    int kept = errno;
    if (!*shadow) return;
    snprintf(to, sizeof to, "%s/%s", shadow, name);
    copy(path, to);
    errno = kept;
}

/* The name is on the disk with whatever of the content was synced: nothing of it, at worst. */
static void renamed(const char *from, const char *to) {
    char source[2 * PATH_MAX], target[2 * PATH_MAX];
    if (!*shadow) return;
    snprintf(source, sizeof source, "%s/%s", shadow, from);
    snprintf(target, sizeof target, "%s/%s", shadow, to);
    if (access(source, F_OK)) {
        copy("/dev/null", target);
    } else {
        real_rename(source, target);
    }
}

ssize_t write(int file, const void *content, size_t size) {
    char path[PATH_MAX];
    const char *name = of_file(file, path);
    if (!name) return real_write(file, content, size);
    int torn = counted("write", name, 1);
    if (fails()) return -1;
    ssize_t done = real_write(file, content, torn ? size / 2 : size);
    if (torn) die();
    return done;
}

ssize_t pwrite64(int file, const void *content, size_t size, off_t at) {
    char path[PATH_MAX];
    const char *name = of_file(file, path);
    if (!name) return real_pwrite(file, content, size, at);
    int torn = counted("pwrite", name, 1);
    if (fails()) return -1;
    ssize_t done = real_pwrite(file, content, torn ? size / 2 : size, at);
    if (torn) die();
    return done;
}

ssize_t pwrite(int file, const void *content, size_t size, off_t at) { return pwrite64(file, content, size, at); }

/* Done by half, the parts are put together first: the half ends in the middle of one. */
ssize_t writev(int file, const struct iovec *parts, int n) {
    char path[PATH_MAX];
    const char *name = of_file(file, path);
    if (!name) return real_writev(file, parts, n);
    int torn = counted("write", name, 1);
    if (fails()) return -1;
    if (!torn) return real_writev(file, parts, n);
    size_t size = 0;
    for (int i = 0; i < n; i++) size += parts[i].iov_len;
    char *content = malloc(size), *end = content;
    for (int i = 0; i < n; end += parts[i].iov_len, i++) memcpy(end, parts[i].iov_base, parts[i].iov_len);
    real_write(file, content, size / 2);
    die();
    return -1;
}

static int opens(int at, const char *given, int flags, mode_t mode) {
    char path[PATH_MAX];
    if (flags & (O_CREAT | O_TRUNC)) {
        const char *name = of_path(given, path);
        if (name) {
            counted("open", name, 0);
            if (fails()) return -1;
        }
    }
    return real_openat(at, given, flags, mode);
}

#define MODE(flags, mode) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

int open(const char *path, int flags, ...) { MODE(flags, mode) return opens(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags, mode) return opens(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags, mode) return opens(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags, mode) return opens(at, path, flags, mode); }

static int syncs(const char *what, int (*real)(int), int file) {
    char path[PATH_MAX];
    const char *name = of_file(file, path);
    if (!name) return real(file);
    counted(what, name, 0);
    if (fails()) return -1;
    int result = real(file);
    struct stat about;
    if (!result && !fstat(file, &about) && S_ISREG(about.st_mode)) synced(path, name);
    return result;
}

int fsync(int file) { return syncs("fsync", real_fsync, file); }
int fdatasync(int file) { return syncs("fdatasync", real_fdatasync, file); }

int rename(const char *from, const char *to) {
    char first[PATH_MAX], second[PATH_MAX];
    const char *source = of_path(from, first), *target = of_path(to, second);
    if (!source || !target) return real_rename(from, to);
    counted("rename", target, 0);
    if (fails()) return -1;
    int result = real_rename(from, to);
    if (!result) renamed(source, target);
    return result;
}

int unlink(const char *given) {
    char path[PATH_MAX];
    const char *name = of_path(given, path);
    if (name) {
        counted("unlink", name, 0);
        if (*shadow) {
            char gone[2 * PATH_MAX];
            snprintf(gone, sizeof gone, "%s/%s", shadow, name);
            real_unlink(gone);
        }
    }
    return real_unlink(given);
}

int ftruncate64(int file, off_t size) {
    char path[PATH_MAX];
    const char *name = of_file(file, path);
    if (name) {
        counted("ftruncate", name, 0);
        if (fails()) return -1;
    }
    return real_ftruncate(file, size);
}

int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int truncate64(const char *given, off_t size) {
    char path[PATH_MAX];
    const char *name = of_path(given, path);
    if (name) {
        counted("truncate", name, 0);
        if (fails()) return -1;
    }
    return real_truncate(given, size);
}

int truncate(const char *path, off_t size) { return truncate64(path, size); }
