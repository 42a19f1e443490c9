/* Mapped files that other programs may change. Reading a page that was cut off raises SIGBUS: our handler maps zeros
   from it to the end, and passes other SIGBUS to the previous handler. Writes raise no signal: ff_was_changed compares
   the file's size and time. */
#define _GNU_SOURCE
#include "mapped.h"

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__APPLE__)
#define st_mtim st_mtimespec
#endif
#if !defined(MAP_ANONYMOUS)
#define MAP_ANONYMOUS MAP_ANON
#endif

enum { MOST = 256 };  /* files watched at a time */

static struct {
    _Atomic uintptr_t from, to;  /* addresses; to == 0: unused entry */
    _Atomic int changed;
    int file;
    struct timespec made;  /* time of the file's last change when the watch began */
} watched[MOST];
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before;
static uintptr_t page;

static void on_bus(int number, siginfo_t *info, void *context)
{
    const uintptr_t at = (uintptr_t)info->si_addr;
    (void)number, (void)context;
    for (int i = 0; i < MOST; i++) {
        const uintptr_t from = atomic_load(&watched[i].from), to = atomic_load(&watched[i].to);
        if (at < from || at >= to)
            continue;
        const uintptr_t first = at & ~(page - 1);
        if (mmap((void *)first, to - first, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
            break;
        atomic_store(&watched[i].changed, 1);
        return;
    }
    sigaction(SIGBUS, &before, NULL);  /* on return, the same instruction raises SIGBUS for the previous handler */
}

static void listen(void)
{
    struct sigaction own = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    own.sa_sigaction = on_bus;
    sigemptyset(&own.sa_mask);
    page = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigaction(SIGBUS, &own, &before);
}

int ff_watch(const void *pages, size_t bytes, int file)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct stat now;
    int found = -1;
    pthread_once(&once, listen);
    pthread_mutex_lock(&changing);
    for (int i = 0; i < MOST && found < 0 && bytes; i++)
        if (!atomic_load(&watched[i].to))
            found = i;
    if (found >= 0) {
        watched[found].file = fcntl(file, F_DUPFD_CLOEXEC, 0);
        if (fstat(file, &now) == 0)
            watched[found].made = now.st_mtim;
        atomic_store(&watched[found].changed, 0);
        atomic_store(&watched[found].from, (uintptr_t)pages);
        atomic_store(&watched[found].to, (uintptr_t)pages + bytes);
    }
    pthread_mutex_unlock(&changing);
    return found;
}

void ff_unwatch(int number)
{
    if (number < 0)
        return;
    const int file = watched[number].file;
    atomic_store(&watched[number].to, 0);
    if (file >= 0)
        close(file);
}

int ff_was_changed(int number)
{
    struct stat now;
    if (number < 0)
        return 0;
    const uintptr_t bytes = atomic_load(&watched[number].to) - atomic_load(&watched[number].from);
    const struct timespec made = watched[number].made;
    if (fstat(watched[number].file, &now) == 0 && ((uintmax_t)now.st_size < bytes || now.st_mtim.tv_sec != made.tv_sec ||
                                                   now.st_mtim.tv_nsec != made.tv_nsec))
        atomic_store(&watched[number].changed, 1);
    return atomic_load(&watched[number].changed);
}
#else
int ff_watch(const void *pages, size_t bytes, int file)
{
    (void)pages, (void)bytes, (void)file;
    return -1;
}

void ff_unwatch(int number)
{
    (void)number;
}

int ff_was_changed(int number)
{
    (void)number;
    return 0;
}
#endif
