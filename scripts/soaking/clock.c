/* A wall clock that can be stepped, for the processes of a soak alone: preloaded, it stands before the C library.

   What a step does to a machine it does here too, to the clock that programs read and to the times of files, both at one
   moment. The kernel goes on dating files by its own clock. So a table has every step with the moment, on that clock,
   from which it holds, and a file's time is moved by the step that held when the file was dated, not by that of now.
   The table only grows, and a step is in it before it holds: whoever asks, and whenever, is told the same time.

   Not moved: monotonic clocks, which no step moves; times that a program gives a file itself; timers that wait for a
   moment of the wall clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

struct table { /* as clock.py writes it */
    _Atomic uint64_t count;
    struct { int64_t from_ns, offset_ns; } steps[];
};

static const struct table *table;

__attribute__((constructor)) static void open_table(void) {
    const char *path = getenv("SOAK_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    off_t size = file < 0 ? 0 : lseek(file, 0, SEEK_END);
    void *found = size > 0 ? mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    if (found != MAP_FAILED)
        table = found;
    if (file >= 0)
        close(file);
}

static void move(struct timespec *at) {
    int64_t now = at->tv_sec * SECOND + at->tv_nsec;
    uint64_t step = table ? atomic_load_explicit(&table->count, memory_order_acquire) : 0;
    while (step-- > 0) {
        if (now >= table->steps[step].from_ns) {
            now += table->steps[step].offset_ns;
            at->tv_sec = now / SECOND;
            at->tv_nsec = now % SECOND;
            return;
        }
    }
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int clock_gettime(clockid_t id, struct timespec *at) {
    REAL(clock_gettime);
    int failed = real(id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        move(at);
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

static int moved(int failed, struct stat *found) {
    if (!failed) {
        move(&found->st_atim);
        move(&found->st_mtim);
        move(&found->st_ctim);
    }
    return failed;
}

int fstatat(int directory, const char *restrict path, struct stat *restrict found, int flags) {
    REAL(fstatat);
    return moved(real(directory, path, found, flags), found);
}

int fstat(int file, struct stat *found) {
    REAL(fstat);
    return moved(real(file, found), found);
}

int stat(const char *restrict path, struct stat *restrict found) { return fstatat(AT_FDCWD, path, found, 0); }

int lstat(const char *restrict path, struct stat *restrict found) {
    return fstatat(AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW);
}

/* The same functions, as programs built for large files call them. */
int fstatat64(int, const char *restrict, struct stat64 *restrict, int) __attribute__((alias("fstatat")));
int fstat64(int, struct stat64 *) __attribute__((alias("fstat")));
int stat64(const char *restrict, struct stat64 *restrict) __attribute__((alias("stat")));
int lstat64(const char *restrict, struct stat64 *restrict) __attribute__((alias("lstat")));

static void move_statx(struct statx_timestamp *at) {
    struct timespec plain = {at->tv_sec, at->tv_nsec};
    move(&plain);
    at->tv_sec = plain.tv_sec;
    at->tv_nsec = plain.tv_nsec;
}

int statx(int directory, const char *restrict path, int flags, unsigned mask, struct statx *restrict found) {
    REAL(statx);
    int failed = real(directory, path, flags, mask, found);
    if (!failed) {
        move_statx(&found->stx_atime);
        move_statx(&found->stx_btime);
        move_statx(&found->stx_ctime);
        move_statx(&found->stx_mtime);
    }
    return failed;
}
