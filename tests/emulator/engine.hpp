// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// CTAs on a CPU. Every thread of a cluster of CTAs is a fiber of one thread of the host; a fiber runs until it
// waits for others: in a warp's collective operation, at a barrier, or in a loop that polls memory. Fibers take
// turns, and each round begins at another warp, by a generator of random numbers with the seed
// EMULATOR_SEED.
//
// Memory between threads is therefore sequentially consistent, and copies of the hardware's engines happen at
// once, but cp.async only when a thread waits for it. What the emulator finds is wrong arithmetic, wrong
// addresses and lanes, missing waits for cp.async, deadlocks, and reads of shared memory that nothing wrote,
// which is NaN. It does not find missing fences, or too weak ones.
#pragma once
#include "shape.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace emulator {

constexpr int kWarp = 32, kMostThreads = EMULATOR_MOST_THREADS,
              kMostCluster = EMULATOR_MOST_CLUSTER, kNamedBarriers = 16;
constexpr size_t kStackBytes = EMULATOR_STACK_BYTES;
constexpr uintptr_t kSharedAt = EMULATOR_SHARED_AT, kSharedEach = EMULATOR_SHARED_EACH;
constexpr int kMostCopies = 256, kMostGroups = 64; // cp.async of a thread in flight

[[noreturn]] inline void fail(const char *what) {
  fprintf(stderr, "emulator: %s\n", what);
  abort();
}

// ---- fibers

extern "C" void emulator_switch(void **from, void *to);
#if defined __x86_64__
asm(R"(
.text
.weak emulator_switch
.type emulator_switch, @function
emulator_switch:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  ret
.size emulator_switch, .-emulator_switch
)");
#else
#error "the emulator runs on x86-64"
#endif

struct Copy {
  u32 to;
  const void *from;
  u32 bytes; // of 16; the others become zeros
};

struct Fiber {
  void *stack, *place; // place: its stack pointer while another one runs
  int thread;          // of the CTA
  struct Cta *cta;
  bool done;
  const volatile u32 *waits_for; // until this differs from `unlike`; null: ready
  u32 unlike;
  u32 cluster_seen; // generation of the cluster's barrier at which it arrived
  // cp.async: copies of the groups that are in flight, the oldest first
  Copy copies[kMostCopies];
  int groups[kMostGroups], copy_count, group_count;
};

// Lanes that execute one operation together.
struct Meeting {
  u32 generation, arrived, wanted;
  const char *operation;
};

constexpr int kLaneWords = 24;

struct Warp {
  Meeting
      meeting[kWarp]; // by the lowest lane of the mask: masks that meet at one time are disjoint
  u32 in[kWarp][kLaneWords], out[kWarp][kLaneWords];
  u32 gone, changes; // lanes that have ended; how often an operation or a lane has ended
};

struct WarpGroup { // for wgmma
  u32 generation, arrived;
  const char *operation;
  float *d[128];
  u32 a[128][4];
};

struct NamedBarrier {
  u32 generation;
  int arrived, expected;
  int votes, positive; // of __syncthreads_or and _count
  int last_votes, last_positive;
};

struct Cta {
  int rank, threads, gone;
  u32 block_x, block_y;
  Warp warps[kMostThreads / kWarp];
  WarpGroup groups[kMostThreads / 128];
  NamedBarrier barriers[kNamedBarriers];
};

struct State {
  Fiber *fibers;
  int fiber_count, running;
  Fiber *self;
  void *scheduler; // its stack pointer
  Cta *ctas;
  int cluster, threads;
  u32 grid_x, grid_y;
  u32 dynamic_bytes, static_bytes; // of shared memory
  void (*body)(const void *);
  const void *params;
  u64 random, progress; // progress: operations that may let others go on
  // barrier.cluster
  u32 cluster_generation;
  int cluster_arrived;
  const char *kernel;
  // Of kernels that wait for other launches: whether one has polled since the last pause
  bool waits_for_system;
  emulator_pause_fn pause;
};
static State state;

inline Fiber *self() { return state.self; }
inline int lane() { return state.self->thread % kWarp; }
inline Warp &warp() { return state.self->cta->warps[state.self->thread / kWarp]; }

inline void yield() {
  Fiber *fiber = state.self;
  emulator_switch(&fiber->place, state.scheduler);
}

// Returns when *where is no longer `unlike`.
inline void wait_until_changed(const volatile u32 *where, u32 unlike) {
  Fiber *fiber = state.self;
  if (*where != unlike) return;
  fiber->waits_for = where, fiber->unlike = unlike;
  yield();
}

inline void *shared_pointer(u32 address) { return (void *)(uintptr_t)address; }
inline u32 shared_base() { return (u32)(kSharedAt + kSharedEach * state.self->cta->rank); }
inline void *dynamic_shared() { return shared_pointer(shared_base()); }
// A static variable in shared memory, behind the dynamic part; `at` belongs to the variable.
inline void *static_shared(u32 *at, size_t bytes, size_t align) {
  if (!*at) {
    state.static_bytes = (u32)((state.static_bytes + align - 1) / align * align);
    *at = state.static_bytes + 1;
    state.static_bytes += (u32)bytes;
  }
  const u32 begin = (state.dynamic_bytes + 1023) / 1024 * 1024 + *at - 1;
  if (begin + bytes > kSharedEach) fail("more shared memory than a CTA's window has");
  return shared_pointer(shared_base() + begin);
}

// ---- operations of a warp

// The lanes of `mask` bring up to kLaneWords words each; the last one to arrive runs `together(warp)`, which fills
// warp.out. Every lane then finds its results in warp.out[lane].
template <class F>
inline const u32 *meet(const char *operation, u32 mask, const u32 *words, int count, F &&together) {
  Warp &w = warp();
  const int mine = lane();
  if (!(mask >> mine & 1)) fail("a lane takes part in an operation whose mask does not name it");
  Meeting &m = w.meeting[__builtin_ctz(mask)];
  if (!m.arrived) m.operation = operation, m.wanted = mask;
  if (m.operation != operation || m.wanted != mask) {
    fprintf(stderr,
            "emulator: %s, thread %d: lanes of a warp meet in %s and %s, masks %08x and %08x\n",
            state.kernel, state.self->thread, m.operation, operation, m.wanted, mask);
    abort();
  }
  if (m.arrived >> mine & 1) fail("a lane arrives twice");
  for (int i = 0; i < count; ++i) w.in[mine][i] = words[i];
  m.arrived |= 1u << mine;
  const u32 generation = m.generation;
  while (m.generation == generation) {
    if ((mask & ~(m.arrived | w.gone)) == 0) { // lanes that have ended do not count
      together(w);
      m.arrived = 0;
      m.generation++;
      w.changes++;
      state.progress++;
    } else
      wait_until_changed(&w.changes, w.changes);
  }
  return w.out[mine];
}

// ---- barriers of a CTA

inline void barrier_join(int number, int threads, bool waits, bool vote, int *any, int *count) {
  Cta &cta = *state.self->cta;
  NamedBarrier &b = cta.barriers[number];
  if (number >= kNamedBarriers || threads % kWarp) fail("a named barrier with a wrong number");
  if (b.arrived && b.expected != threads) fail("threads meet at a barrier with different counts");
  b.expected = threads;
  b.arrived++;
  b.votes++, b.positive += vote;
  state.progress++;
  const u32 generation = b.generation;
  // Threads that have ended count at __syncthreads() alone.
  if (b.arrived + (number ? 0 : cta.gone) >= threads) {
    b.last_positive = b.positive;
    b.arrived = b.votes = b.positive = 0;
    b.generation = generation + 1;
  } else if (waits)
    wait_until_changed(&b.generation, generation);
  if (any) *any = b.last_positive > 0;
  if (count) *count = b.last_positive;
}

// ---- mbarrier, 8 bytes: phase 1 bit, arrivals of a phase 15, arrivals that are missing 16, bytes
// that are missing 32

struct MBarrier {
  u16 phase : 1, arrivals : 15;
  int16_t missing;
  int32_t bytes;
};
static_assert(sizeof(MBarrier) == 8, "");

inline MBarrier &mbarrier(u32 address) {
  if (address % 8) fail("an mbarrier is not aligned to 8 bytes");
  return *(MBarrier *)shared_pointer(address);
}
inline void mbarrier_complete(MBarrier &b) {
  state.progress++;
  if (b.missing < 0) fail("more arrivals at an mbarrier than its phase has");
  if (b.missing || b.bytes) return;
  b.phase ^= 1;
  b.missing = (int16_t)b.arrivals;
}
inline void mbarrier_arrive(u32 address, u32 bytes) {
  MBarrier &b = mbarrier(address);
  b.bytes += (int32_t)bytes;
  b.missing--;
  mbarrier_complete(b);
}
inline void mbarrier_bytes(u32 address, u32 bytes) { // have arrived
  MBarrier &b = mbarrier(address);
  b.bytes -= (int32_t)bytes;
  mbarrier_complete(b);
}

// ---- cp.async

inline void copies_perform(int groups_kept) {
  Fiber &f = *state.self;
  int groups = f.group_count - groups_kept, count = 0;
  if (groups <= 0) return;
  for (int g = 0; g < groups; ++g) count += f.groups[g];
  for (int i = 0; i < count; ++i) {
    char bytes[16] = {};
    if (f.copies[i].bytes) memcpy(bytes, f.copies[i].from, f.copies[i].bytes);
    memcpy(shared_pointer(f.copies[i].to), bytes, 16);
  }
  memmove(f.copies, f.copies + count, (size_t)(f.copy_count - count) * sizeof *f.copies);
  memmove(f.groups, f.groups + groups, (size_t)(f.group_count - groups) * sizeof *f.groups);
  f.copy_count -= count;
  f.group_count -= groups;
}
inline int copies_uncommitted() {
  const Fiber &f = *state.self;
  int count = f.copy_count;
  for (int g = 0; g < f.group_count; ++g) count -= f.groups[g];
  return count;
}
inline void copies_commit() {
  Fiber &f = *state.self;
  const int count = copies_uncommitted();
  if (f.group_count == kMostGroups) copies_perform(kMostGroups / 2);
  f.groups[f.group_count++] = count;
}
inline void copies_add(u32 to, const void *from, u32 bytes) {
  Fiber &f = *state.self;
  if (to % 16 || (uintptr_t)from % 16)
    fail("cp.async of 16 bytes at an address that is no multiple of 16");
  if (f.copy_count ==
      kMostCopies) { // more than is kept: the oldest are done early, as the hardware may do
    copies_commit();
    copies_perform(0);
  }
  f.copies[f.copy_count++] = { to, from, bytes };
}

// ---- running

inline void thread_ends() {
  Fiber &f = *state.self;
  copies_commit();
  copies_perform(0);
  Warp &w = warp();
  const u32 mine = 1u << lane();
  state.progress++;
  w.gone |= mine;
  w.changes++;
  f.cta->gone++;
  NamedBarrier &b = f.cta->barriers[0];
  if (b.arrived && b.arrived + f.cta->gone >= b.expected) {
    b.last_positive = b.positive;
    b.arrived = b.votes = b.positive = 0;
    b.generation++;
  }
  f.done = true;
}

inline void fiber_main() {
  state.body(state.params);
  thread_ends();
  state.running--;
  for (;;) yield();
}

inline void fiber_begin(Fiber &f, int thread, Cta *cta) {
  f.thread = thread, f.cta = cta, f.done = false, f.waits_for = nullptr;
  f.copy_count = f.group_count = 0;
  void **top = (void **)((char *)f.stack + kStackBytes - 64);
  *--top = nullptr; // a return address for fiber_main, and its stack's alignment
  *--top = (void *)fiber_main;
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  f.place = top;
}

inline u64 random_number() {
  state.random ^= state.random << 13, state.random ^= state.random >> 7,
      state.random ^= state.random << 17;
  return state.random;
}

// Lets other launches run, which may be of this kernel: all that they change is kept.
inline void pause_launch() {
  State kept = state;
  const size_t shared = (kept.dynamic_bytes + 1023) / 1024 * 1024 + kept.static_bytes;
  char *windows = (char *)malloc(shared * (size_t)kept.cluster + 1);
  for (int rank = 0; rank < kept.cluster; ++rank)
    memcpy(windows + shared * (size_t)rank, (void *)(kSharedAt + kSharedEach * (uintptr_t)rank),
           shared);
  state.fibers = nullptr, state.ctas = nullptr, state.fiber_count = 0;
  kept.pause();
  free(state.fibers), free(state.ctas);
  kept.static_bytes = state.static_bytes; // grows only, and where a variable lies does not change
  kept.random = state.random;
  state = kept;
  for (int rank = 0; rank < kept.cluster; ++rank)
    memcpy((void *)(kSharedAt + kSharedEach * (uintptr_t)rank), windows + shared * (size_t)rank,
           shared);
  free(windows);
}

inline void run_cluster() {
  const int count = state.fiber_count;
  state.running = count;
  u64 progress = state.progress;
  int idle = 0;
  while (state.running) {
    const int first = (int)(random_number() % (u64)(count / kWarp)) * kWarp;
    bool ran = false;
    for (int i = 0; i < count; ++i) {
      Fiber &f = state.fibers[(first + i) % count];
      if (f.done) continue;
      if (f.waits_for) {
        if (*f.waits_for == f.unlike) continue;
        f.waits_for = nullptr;
      }
      state.self = &f;
      emulator_switch(&state.scheduler, f.place);
      ran = true;
    }
    // Threads that poll always run.
    idle = state.progress == progress ? idle + 1 : 0;
    if (idle && state.waits_for_system) {
      state.waits_for_system = false, idle = 0;
      pause_launch();
    }
    progress = state.progress;
    if (!ran || idle > 10000) {
      fprintf(stderr, "emulator: %s: deadlock in block %u, %u\n", state.kernel,
              state.ctas[0].block_x, state.ctas[0].block_y);
      abort();
    }
  }
}

inline void run(const char *kernel, void (*body)(const void *), const void *params, u32 grid_x,
                u32 grid_y, int threads, u32 shared_bytes, int cluster, void *stacks,
                emulator_pause_fn pause) {
  if (threads % kWarp || grid_x % (u32)cluster || cluster > kMostCluster)
    fail("a launch with a wrong shape");
  if (state.fiber_count < threads * cluster)
    state.fibers = (Fiber *)realloc(state.fibers, sizeof(Fiber) * (size_t)(threads * cluster));
  if (!state.ctas) state.ctas = (Cta *)malloc(sizeof(Cta) * kMostCluster);
  for (int i = 0; i < threads * cluster; ++i)
    state.fibers[i].stack = (char *)stacks + kStackBytes * (size_t)i;
  if (!state.random) {
    const char *seed = getenv("EMULATOR_SEED");
    state.random = 0x9e3779b97f4a7c15ull * (1 + (seed ? strtoull(seed, nullptr, 0) : 0));
  }
  state.kernel = kernel, state.body = body, state.params = params;
  state.grid_x = grid_x, state.grid_y = grid_y;
  state.waits_for_system = false, state.pause = pause;
  state.threads = threads, state.cluster = cluster, state.dynamic_bytes = shared_bytes;
  state.fiber_count = threads * cluster;
  for (u32 y = 0; y < grid_y; ++y)
    for (u32 x = 0; x < grid_x; x += (u32)cluster) {
      memset(state.ctas, 0, sizeof(Cta) * (size_t)cluster);
      state.cluster_generation = 0, state.cluster_arrived = 0;
      for (int rank = 0; rank < cluster; ++rank) {
        Cta &cta = state.ctas[rank];
        cta.rank = rank, cta.threads = threads, cta.block_x = x + (u32)rank, cta.block_y = y;
        memset((void *)(kSharedAt + kSharedEach * (uintptr_t)rank), 0xff,
               (shared_bytes + 1023) / 1024 * 1024 + state.static_bytes);
        for (int t = 0; t < threads; ++t) fiber_begin(state.fibers[rank * threads + t], t, &cta);
      }
      run_cluster();
    }
}

} // namespace emulator
