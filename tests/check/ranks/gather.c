/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks/gather.h"

#include "check.h"
#include "ranks/comm.h"
#include "ranks/peers.h"
#include "verify/parallel.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS 60
#define GUARD 16 /* bytes around what is gathered; a multiple of 16 */
#define BEYOND 100
#define FAULT_BYTES 33024
#define RUN_GATHERS 2 /* of chk_gather_run */

/* Memory of a rank: what it sends, and what it receives with its guards. */
typedef struct area {
  size_t bytes; /* of `recv` and of the images */
  void *send, *recv;
  unsigned char *image, *expected;
} area;

static void area_free(const chk_rank *r, area *a) {
  nsai_verify_device_free(r->device, a->send);
  nsai_verify_device_free(r->device, a->recv);
  free(a->image);
  free(a->expected);
}

static nsa_status area_make(const chk_rank *r, size_t most, area *a) {
  *a = (area){ .bytes = (size_t)r->p->ranks * most + 3 * GUARD };
  a->image = malloc(a->bytes);
  a->expected = malloc(a->bytes);
  if (!a->image || !a->expected) return nsai_fail_nomem("gathers", a->bytes);
  NSAI_TRY(nsai_verify_device_alloc(r->device, most + GUARD, &a->send));
  return nsai_verify_device_alloc(r->device, a->bytes, &a->recv);
}

static unsigned char byte_of(int32_t from, int round, size_t at) {
  const uint64_t x = ((uint64_t)at * 31 + (uint64_t)from * 7919 + (uint64_t)round * 104729 + 1) *
                     UINT64_C(0x9e3779b97f4a7c15);
  return (unsigned char)(x >> 56);
}

/* All ranks draw the sizes alike; each draws its addresses. */
static size_t draw_bytes(nsai_verify_random *random, size_t most) {
  static const size_t edges[] = { 0, 1, 15, 16, 17, 2047, 2048, 2049, 4096, FAULT_BYTES };
  const int64_t edge = nsai_verify_pick(random, 0, 2 * (int64_t)(sizeof edges / sizeof *edges));
  const size_t bytes = (size_t)nsai_verify_pick(random, 0, (int64_t)most);
  if (edge >= (int64_t)(sizeof edges / sizeof *edges)) return bytes;
  return edges[edge] < most ? edges[edge] : most;
}

static size_t draw_shift(nsai_verify_random *random) {
  static const size_t shifts[] = { 0, 0, 0, 4, 8, 1, 6, 15 };
  return shifts[nsai_verify_pick(random, 0, 7)];
}

static nsa_status gather_round(chk_rank *r, area *a, int round, size_t bytes,
                               nsai_verify_random *own) {
  const size_t begin = GUARD + draw_shift(own), shift = draw_shift(own);
  char *recv = (char *)a->recv + begin, *send = (char *)a->send + shift;
  if (nsai_verify_pick(own, 0, 1)) send = recv + bytes * (size_t)r->rank;
  for (size_t i = 0; i < bytes; i++) a->image[i] = byte_of(r->rank, round, i);
  NSAI_TRY(nsai_verify_device_set(r->device, a->recv, 0xa5, a->bytes));
  if (bytes) NSAI_TRY(nsai_verify_device_upload(r->device, send, a->image, bytes));
  NSAI_TRY(nsai_comm_all_gather(r->comm, send, recv, bytes, (nsa_stream)r->device->stream));
  NSAI_TRY(nsa_comm_wait(r->comm, (nsa_stream)r->device->stream, 0));
  NSAI_TRY(nsai_verify_device_download(r->device, a->image, a->recv, a->bytes));
  memset(a->expected, 0xa5, a->bytes);
  for (int32_t from = 0; from < r->p->ranks; from++)
    for (size_t i = 0; i < bytes; i++)
      a->expected[begin + (size_t)from * bytes + i] = byte_of(from, round, i);
  for (size_t i = 0; i < a->bytes; i++) {
    if (a->image[i] == a->expected[i]) continue;
    nsai_verify_fail(r->result,
                     "rank %d: gather %d of %zu bytes: byte %lld of what it received is wrong",
                     r->rank, round, bytes, (long long)i - (long long)begin);
    break;
  }
  return NSA_OK;
}

static nsa_status gather_all(chk_rank *r, area *a, size_t most) {
  nsai_verify_random alike = { 1, 0 };
  nsai_verify_random own = { (uint64_t)r->rank + 2, 0 };
  for (int round = 0; round < ROUNDS; round++)
    NSAI_TRY(gather_round(r, a, round, draw_bytes(&alike, most), &own));
  return NSA_OK;
}

nsa_status chk_gather_check(chk_rank *r) {
  const nsa_comm_options asked = { .peer_bytes = r->options->peer_bytes,
                                   .copy_bytes = r->options->copy_bytes };
  const int32_t wanted = r->p->ranks > 1 ? nsai_peers_most_bytes(&asked) : 0;
  const size_t most = (size_t)wanted + BEYOND;
  area a;
  if (nsai_comm_peer_bytes(r->comm) != wanted)
    nsai_verify_fail(r->result,
                     "rank %d: gathers of up to %d bytes go through peer memory, not %d: "
                     "--set runtime.log_level=info says why",
                     r->rank, nsai_comm_peer_bytes(r->comm), wanted);
  if (!wanted) return NSA_OK;
  nsa_status status = area_make(r, most, &a);
  if (status) /* others wait for this rank */
    nsai_comm_fail(r->comm, nsa_last_error());
  else
    status = gather_all(r, &a, most);
  area_free(r, &a);
  return status;
}

/* What the ranks received of RUN_GATHERS gathers, one behind the other. */
static void compare_run(const chk_rank *r, const area *a, size_t bytes) {
  for (int round = 0; round < RUN_GATHERS; round++)
    for (int32_t from = 0; from < r->p->ranks; from++)
      for (size_t i = 0; i < bytes; i++) {
        const size_t at = ((size_t)round * (size_t)r->p->ranks + (size_t)from) * bytes + i;
        if (a->image[at] == byte_of(from, round, i)) continue;
        nsai_verify_fail(r->result, "rank %d: gather %d: byte %zu of rank %d is wrong", r->rank,
                         round, i, from);
        return;
      }
}

static nsa_status run_gathers(const chk_rank *r, area *a, size_t bytes) {
  const nsa_stream stream = (nsa_stream)r->device->stream;
  for (int round = 0; round < RUN_GATHERS; round++)
    for (size_t i = 0; i < bytes; i++)
      a->image[(size_t)round * bytes + i] = byte_of(r->rank, round, i);
  NSAI_TRY(nsai_verify_device_set(r->device, a->recv, 0xa5, a->bytes));
  NSAI_TRY(nsai_verify_device_upload(r->device, a->send, a->image, RUN_GATHERS * bytes));
  for (size_t round = 0; round < RUN_GATHERS; round++)
    NSAI_TRY(nsai_comm_all_gather(r->comm, (char *)a->send + round * bytes,
                                  (char *)a->recv + round * (size_t)r->p->ranks * bytes, bytes,
                                  stream));
  NSAI_TRY(nsa_comm_wait(r->comm, stream, 0));
  NSAI_TRY(nsai_verify_device_download(r->device, a->image, a->recv, a->bytes));
  compare_run(r, a, bytes);
  return NSA_OK;
}

nsa_status chk_gather_run(const chk_rank *r) {
  const int32_t most = r->options->peer_bytes;
  const size_t bytes = (size_t)(most < FAULT_BYTES ? most : FAULT_BYTES);
  area a;
  nsa_status status = area_make(r, RUN_GATHERS * bytes, &a);
  if (!status) status = run_gathers(r, &a, bytes);
  if (status) a.send = a.recv = NULL; /* a kernel may still use it, and freeing it may wait */
  area_free(r, &a);
  return status;
}
