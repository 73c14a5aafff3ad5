// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// ranks_gather: recv[r] = the message of rank r, for all ranks of a host, which write into each other's
// memory.
//
//   send [bytes] -> recv [ranks, bytes], of any alignment; send may be recv[rank]
//
// Grid: (chunks of the message, ranks). CTA (c, r) and its counterpart (c, rank) on rank r exchange
// chunk c, and nobody else takes part:
//
//   this rank                              rank r
//   send[c] -> r's mailbox, slot e & 1     the same towards this rank
//   r's flag = e             (release)
//   own flag from r >= e     (acquire)
//   own mailbox, slot e & 1 -> recv[r][c]
//
// e is the round of this CTA. It lies in the mailbox and is counted by the CTA itself, so that a
// captured graph can be replayed. All ranks launch the same grids in the same order, so both sides of a
// pair count alike, also where messages differ in their numbers of chunks.
//
// Two slots suffice. This CTA writes round e + 2 into the slot of e behind its own round e + 1, in which it
// saw r's flag e + 1. The counterpart on r sends that flag in its launch e + 1, which begins when its
// launch e has ended, and there it has read the slot of e. A flag may be ahead by one round: hence >=.
//
// A rank that does not come ends the wait after timeout_ns. The kernel then names the rank in the
// control words, stops the other waits, and leaves recv[r] as it was. The host stops waits by the same
// word. The grid must be resident as a whole, on every rank: CTAs wait for their counterparts.
//
// Copies of other ranks into this rank's memory are made by copy engines, which set no flag of a gather. A gather
// before them counts the epoch. Behind its copies a rank copies its epoch to the others, and a launch without
// bytes waits for theirs: grid (1, ranks).
//
// No shared memory. 128 threads, 30 to 48 registers. Times: docs/ranks-cache.md.
//
// Config: kThreads.
#pragma once
#include "core/barrier.cuh"
#include "core/launch.cuh"
#include "core/types.cuh"
#include "params/ranks.h"

constexpr int kPollsPerLook =
    64; // the control words lie in host memory, and are read less often than the flag

// Copies `count` elements with the threads of the CTA, four loads in flight.
template <class T, int kThreads>
NSAI_DEVICE void copy_elements(char *to_bytes, const char *from_bytes, int count) {
  T *to = reinterpret_cast<T *>(to_bytes);
  const T *from = reinterpret_cast<const T *>(from_bytes);
  for (int first = threadIdx.x; first < count; first += 4 * kThreads) {
    T x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + i * kThreads < count) x[i] = from[first + i * kThreads];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + i * kThreads < count) to[first + i * kThreads] = x[i];
  }
}

// Copies bytes, 16, 4 or 1 at a time as both addresses allow, and what is left over by single bytes.
template <int kThreads> NSAI_DEVICE void copy_bytes(char *to, const char *from, int bytes) {
  const int odd = (int)((reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from)) & 15);
  const int whole = odd == 0 ? bytes & ~15 : odd % 4 == 0 ? bytes & ~3 : 0;
  if (odd == 0)
    copy_elements<Chunk, kThreads>(to, from, whole / 16);
  else if (odd % 4 == 0)
    copy_elements<u32, kThreads>(to, from, whole / 4);
  copy_elements<u8, kThreads>(to + whole, from + whole, bytes - whole);
}

// One thread waits for a rank's flag. Returns whether it came.
NSAI_DEVICE bool wait_for_rank(const NsaiRanksGather &p, const int *flag, int round, int rank) {
  const u64 since = global_nanoseconds();
  for (int polls = 1; (int)((u32)acquire_word_system(flag) - (u32)round) < 0; ++polls) {
    if (polls % kPollsPerLook) continue;
    if (acquire_word_system(&p.control->stop)) return false;
    if ((long long)(global_nanoseconds() - since) < p.timeout_ns) continue;
    release_word_system(&p.control->missing[rank], 1);
    release_word_system(&p.control->stop, 1);
    return false;
  }
  return true;
}

// Waits until the copies of rank blockIdx.y of this epoch have come.
NSAI_DEVICE void await_copies(const NsaiRanksGather &p) {
  const int rank = blockIdx.y;
  if (rank == p.rank || threadIdx.x) return;
  wait_for_rank(p, p.copied + rank * (NSAI_GATHER_SECTOR / 4), *p.epoch, rank);
}

template <class Config> NSAI_DEVICE void exchange_chunk(const NsaiRanksGather &p) {
  constexpr int kThreads = Config::kThreads;
  const int chunk = blockIdx.x, rank = blockIdx.y, begin = chunk * p.piece,
            bytes = min(p.piece, p.bytes - begin);
  char *recv = p.recv + (long long)rank * p.bytes + begin;
  const char *send = p.send + begin;
  if (rank == p.rank) {
    if (p.epoch && chunk == 0 && threadIdx.x == 0) *p.epoch = (int)((u32)*p.epoch + 1u);
    if (recv != send) copy_bytes<kThreads>(recv, send, bytes);
    return;
  }
  char *own = p.mailbox[p.rank], *theirs = p.mailbox[rank];
  int *counter =
      reinterpret_cast<int *>(own + nsai_gather_round(rank, chunk, p.ranks, p.chunks, p.room));
  const int round =
      (int)((u32)*counter + 1u); // wraps after 2^32 rounds, and so does the comparison

  // ---- send
  copy_bytes<kThreads>(theirs + nsai_gather_data(round, p.rank, chunk, p.ranks, p.chunks, p.room),
                       send, bytes);
  __syncthreads(); // all threads have read the counter and stored their bytes: the release covers them
  bool came = false;
  if (threadIdx.x == 0) {
    release_word_system(reinterpret_cast<int *>(
                            theirs + nsai_gather_flag(p.rank, chunk, p.ranks, p.chunks, p.room)),
                        round);
    *counter = round;

    // ---- wait
    came = wait_for_rank(p,
                         reinterpret_cast<int *>(
                             own + nsai_gather_flag(rank, chunk, p.ranks, p.chunks, p.room)),
                         round, rank);
  }
  if (!__syncthreads_or(came)) return;

  // ---- receive
  copy_bytes<kThreads>(recv, own + nsai_gather_data(round, rank, chunk, p.ranks, p.chunks, p.room),
                       bytes);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    ranks_gather(const __grid_constant__ NsaiRanksGather p) {
  begin_kernel();
  if (p.bytes)
    exchange_chunk<Config>(p);
  else
    await_copies(p);
}
