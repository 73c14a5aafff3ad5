/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Compiles many units in parallel. The threads take jobs in order from one counter; the calling
 * thread hands finished jobs on, reports progress and waits. When no thread can be started, it
 * compiles itself.
 *
 * Lock rule: `lock` protects next, done, last, stop, and a job's outputs from the time it is
 * taken until it is counted as done, but for `finished`, which is a list of its own: element i is
 * written under the lock before `done` exceeds i, and read afterwards. Otherwise only the thread
 * that took a job uses it.
 */
#include "compile/compiler.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* NVRTC 13 scales to about four threads; with more, the longest kernel determines the time
 * (measured on 16 cores: 10 jobs in 7.8, 4.8, 2.7, 2.3, 2.7 s on 1, 2, 4, 8, 16 threads). */
#define DEFAULT_THREADS_MAX 4
#define THREADS_MAX 64

/* The compiler front end recurses on templates. NVRTC would raise the process's stack limit,
 * which an option disables, so its threads get a large stack (only touched pages use memory). */
#define STACK_BYTES ((size_t)64 << 20)

typedef struct pool {
  nsai_compiler *compiler;
  nsai_compile_job *jobs;
  size_t count;
  bool keep_going, past_refused;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  size_t next, done; /* jobs taken, jobs finished */
  size_t last;       /* the job that finished last */
  bool stop;         /* take no more jobs */
  bool cancelled;    /* by the host */
} pool;

static void compile_job(nsai_compiler *compiler, nsai_compile_job *job) {
  job->status = nsai_compile(compiler, &job->request, &job->image);
  if (job->status != NSA_OK) job->error = strdup(nsa_last_error());
}

/* Takes and compiles one job; false when none is left. */
static bool work_once(pool *p) {
  pthread_mutex_lock(&p->lock);
  bool take = !p->stop && p->next < p->count;
  size_t index = p->next;
  if (take) p->next++;
  pthread_mutex_unlock(&p->lock);
  if (!take) return false;
  compile_job(p->compiler, &p->jobs[index]);
  pthread_mutex_lock(&p->lock);
  p->jobs[p->done].finished = index;
  p->done++;
  p->last = index;
  if (p->jobs[index].status != NSA_OK && !p->keep_going &&
      !(p->past_refused && p->jobs[index].image.refused))
    p->stop = true;
  pthread_cond_signal(&p->changed);
  pthread_mutex_unlock(&p->lock);
  return true;
}

static void *loader_thread(void *user) {
  while (work_once(user)) {}
  return NULL;
}

static int32_t default_threads(void) {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return cores < DEFAULT_THREADS_MAX ? cores : DEFAULT_THREADS_MAX;
}

/* Starts up to `wanted` threads with all signals blocked, because the host's handlers belong to
 * its own threads. Returns how many were started. */
static int32_t start_threads(pool *p, pthread_t *threads, int32_t wanted) {
  pthread_attr_t attributes;
  sigset_t all, before;
  int32_t started = 0;
  if (pthread_attr_init(&attributes) != 0) return 0;
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (started < wanted && pthread_create(&threads[started], &attributes, loader_thread, p) == 0)
    started++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return started;
}

/* Hands on the jobs that finished as number `from` to `to` - 1. */
static void hand_on(pool *p, const nsai_compile_many_options *run, size_t from, size_t to) {
  for (; run->finished && from < to; from++)
    run->finished(run->user, &p->jobs[p->jobs[from].finished]);
}

/* Asks the host whether to continue, with the name of the job that finished last. */
static void report(pool *p, const nsai_compile_many_options *run, size_t done, size_t last) {
  if (!run->progress) return;
  if (run->progress(run->user, (int64_t)done, (int64_t)p->count, p->jobs[last].request.name) == 0)
    return;
  pthread_mutex_lock(&p->lock);
  p->stop = p->cancelled = true;
  pthread_mutex_unlock(&p->lock);
}

/* Waits for the threads and reports each finished job. Returns when every job that was taken is
 * done. */
static void supervise(pool *p, const nsai_compile_many_options *run) {
  size_t seen = 0;
  pthread_mutex_lock(&p->lock);
  for (;;) {
    while (p->done == seen && !(p->done == p->next && (p->stop || p->next == p->count)))
      pthread_cond_wait(&p->changed, &p->lock);
    if (p->done == seen) break;
    const size_t before = seen, done = seen = p->done, last = p->last;
    pthread_mutex_unlock(&p->lock);
    hand_on(p, run, before, done);
    report(p, run, done, last);
    pthread_mutex_lock(&p->lock);
  }
  pthread_mutex_unlock(&p->lock);
}

/* The first failure, which a refused kernel is last of all: a host that cancels does not want the smaller tiles
 * that would follow. */
static nsa_status first_failure(const pool *p) {
  const nsai_compile_job *first = NULL;
  for (size_t i = 0; i < p->count; i++) {
    const nsai_compile_job *job = &p->jobs[i];
    if (job->status == NSA_OK || job->status == NSA_E_CANCELLED) continue;
    if (!first || (first->image.refused && !job->image.refused)) first = job;
  }
  if (first && !(p->cancelled && first->image.refused))
    return nsai_fail_text(first->status,
                          first->error ? first->error : nsa_status_text(first->status));
  bool incomplete = first;
  for (size_t i = 0; i < p->count; i++) incomplete |= p->jobs[i].status == NSA_E_CANCELLED;
  if (!incomplete) return NSA_OK;
  return nsai_fail(NSA_E_CANCELLED, "cancelled after %zu of %zu kernels; those are kept", p->done,
                   p->count);
}

nsa_status nsai_compile_many(nsai_compiler *compiler, nsai_compile_job *jobs, size_t count,
                             const nsai_compile_many_options *run) {
  static const nsai_compile_many_options defaults = { 0 };
  pthread_t threads[THREADS_MAX];
  if (!run) run = &defaults;
  pool p = { .compiler = compiler,
             .jobs = jobs,
             .count = count,
             .keep_going = run->keep_going,
             .past_refused = run->past_refused };
  for (size_t i = 0; i < count; i++) {
    memset(&jobs[i].image, 0, sizeof jobs[i].image);
    jobs[i].status = NSA_E_CANCELLED;
    jobs[i].error = NULL;
  }
  if (count == 0) return NSA_OK;
  pthread_mutex_init(&p.lock, NULL);
  pthread_cond_init(&p.changed, NULL);
  int32_t wanted = run->threads > 0 ? run->threads : default_threads();
  if (wanted > THREADS_MAX) wanted = THREADS_MAX;
  if ((size_t)wanted > count) wanted = (int32_t)count;
  report(&p, run, 0, 0);
  /* Even a single job runs on a thread of its own: the compiler needs the large stack. */
  int32_t started = start_threads(&p, threads, wanted);
  if (started == 0)
    while (work_once(&p)) {
      hand_on(&p, run, p.done - 1, p.done);
      report(&p, run, p.done, p.last);
    }
  else
    supervise(&p, run);
  for (int32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
  pthread_cond_destroy(&p.changed);
  pthread_mutex_destroy(&p.lock);
  return first_failure(&p);
}
