/* A thread pool that survives fork. A call never waits for workers that have not started: when the caller's own task
   returns, no worker can join any more. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

#define MAX_WORKERS 255  /* limits a mistaken count */
#define SPINS 4000  /* about 42 us of polling before a thread sleeps */
#define CLOSED (1u << 31)  /* larger than any count of workers */

static pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER;       /* held by the call that uses the pool */
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;  /* guards `wake` and `done` */
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static int workers;                 /* threads started so far; changed under `owner` */
static ff_task job_task;            /* the current job, written before `joined` is set to 0 */
static void *job_context;
static _Atomic unsigned joined = CLOSED;    /* workers in the current job, or CLOSED */
static _Atomic unsigned places;     /* most workers that may join */
static _Atomic unsigned finished;
static _Atomic unsigned epoch;      /* counts jobs, so that workers see a new one */

static void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Join the current job. Returns the worker's index from 1, or 0 if the job is closed or full. */
static unsigned join_job(void)
{
    unsigned n = atomic_load(&joined);
    while (!(n & CLOSED) && n < atomic_load(&places))
        if (atomic_compare_exchange_weak(&joined, &n, n + 1))
            return n + 1;
    return 0;
}

static void *run_worker(void *unused)
{
    unsigned seen = 0;
    (void)unused;
    for (;;) {
        for (int i = 0; i < SPINS && atomic_load(&epoch) == seen; i++)
            pause_core();
        if (atomic_load(&epoch) == seen) {
            pthread_mutex_lock(&sleep_lock);
            while (atomic_load(&epoch) == seen)
                pthread_cond_wait(&wake, &sleep_lock);
            pthread_mutex_unlock(&sleep_lock);
        }
        seen = atomic_load(&epoch);
        unsigned place = join_job();
        if (!place)
            continue;
        job_task(job_context, (int)place);
        pthread_mutex_lock(&sleep_lock);
        atomic_fetch_add(&finished, 1);
        pthread_cond_signal(&done);
        pthread_mutex_unlock(&sleep_lock);
    }
    return NULL;
}

static void before_fork(void)
{
    pthread_mutex_lock(&owner);
    pthread_mutex_lock(&sleep_lock);
}

static void parent_after_fork(void)
{
    pthread_mutex_unlock(&sleep_lock);
    pthread_mutex_unlock(&owner);
}

static void child_after_fork(void)
{
    workers = 0;  /* fork copies only the calling thread */
    pthread_mutex_init(&sleep_lock, NULL);
    pthread_mutex_init(&owner, NULL);
    pthread_cond_init(&wake, NULL);
    pthread_cond_init(&done, NULL);
}

/* Start workers until there are `wanted`, or the system refuses. Workers block all signals. */
static void start_workers(int wanted)
{
    static int registered;
    sigset_t all, old;
    pthread_t thread;
    if (!registered)
        registered = pthread_atfork(before_fork, parent_after_fork, child_after_fork) == 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (; registered && workers < wanted && pthread_create(&thread, NULL, run_worker, NULL) == 0; workers++)
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void ff_run(ff_task task, void *context, int threads)
{
    if (threads > MAX_WORKERS + 1)
        threads = MAX_WORKERS + 1;
    if (threads < 2 || pthread_mutex_trylock(&owner)) {  /* the pool is busy: use one thread */
        task(context, 0);
        return;
    }
    start_workers(threads - 1);
    job_task = task;
    job_context = context;
    atomic_store(&finished, 0);
    atomic_store(&places, (unsigned)(threads - 1));
    atomic_store(&joined, 0);
    pthread_mutex_lock(&sleep_lock);
    atomic_fetch_add(&epoch, 1);
    pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&sleep_lock);
    task(context, 0);
    unsigned count = atomic_fetch_or(&joined, CLOSED);
    for (int i = 0; i < SPINS && atomic_load(&finished) != count; i++)
        pause_core();
    pthread_mutex_lock(&sleep_lock);
    while (atomic_load(&finished) != count)
        pthread_cond_wait(&done, &sleep_lock);
    pthread_mutex_unlock(&sleep_lock);
    pthread_mutex_unlock(&owner);
}

/* Scratch memory, freed when its thread ends. */

typedef struct {
    void *memory;
    size_t bytes;
} arena;

static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static __thread arena own_scratch;

static void make_key(void)
{
    pthread_key_create(&key, free);
}

void *ff_scratch(size_t bytes)
{
    if (bytes <= own_scratch.bytes)
        return own_scratch.memory;
    pthread_once(&key_once, make_key);
    void *memory = NULL;
    bytes = (bytes + 4095) / 4096 * 4096;
    if (posix_memalign(&memory, 64, bytes))
        return NULL;
    if (pthread_setspecific(key, memory)) {
        free(memory);
        return NULL;
    }
    memset(memory, 0, bytes);  /* kernels also read padding, in which NaN would spread */
    free(own_scratch.memory);
    own_scratch = (arena){memory, bytes};
    return memory;
}
