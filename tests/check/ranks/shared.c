/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks/shared.h"

#include "base/duration.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static void *share(size_t bytes) {
  void *memory =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

nsa_status chk_shared_create(int32_t size, chk_shared **out) {
  *out = share(sizeof **out);
  if (!*out) return nsai_fail_nomem("the memory that ranks share", sizeof **out);
  (*out)->size = size;
  for (int32_t rank = 0; rank < size; rank++) {
    (*out)->partials[rank] = share(CHK_SHARED_PARTIALS * sizeof(float));
    if ((*out)->partials[rank]) continue;
    chk_shared_destroy(*out);
    *out = NULL;
    return nsai_fail_nomem("the ranks' partial sums", CHK_SHARED_PARTIALS * sizeof(float));
  }
  return NSA_OK;
}

void chk_shared_destroy(chk_shared *shared) {
  if (!shared) return;
  for (int32_t rank = 0; rank < shared->size; rank++)
    if (shared->partials[rank]) munmap(shared->partials[rank], CHK_SHARED_PARTIALS * sizeof(float));
  munmap(shared, sizeof *shared);
}

static bool meet(chk_shared *shared, int32_t rank, bool naps) {
  const struct timespec nap = { 0, 100000 };
  const double start = nsai_seconds();
  const long long all = ++shared->meetings[rank] * shared->size;
  atomic_fetch_add(&shared->arrived, 1);
  while (atomic_load(&shared->arrived) < all) {
    if (atomic_load(&shared->broken)) return false;
    if (nsai_seconds() - start > CHK_SHARED_PATIENCE) {
      atomic_store(&shared->broken, 1);
      return false;
    }
    if (naps) nanosleep(&nap, NULL);
  }
  return true;
}

bool chk_shared_meet(chk_shared *shared, int32_t rank) { return meet(shared, rank, true); }
bool chk_shared_meet_now(chk_shared *shared, int32_t rank) { return meet(shared, rank, false); }

bool chk_shared_all_well(chk_shared *shared, int32_t rank, nsa_status mine) {
  shared->mine[rank] = mine;
  bool well = chk_shared_meet(shared, rank);
  for (int32_t i = 0; i < shared->size; i++) well &= !shared->mine[i];
  return chk_shared_meet(shared, rank) && well; /* all have read it */
}

void chk_shared_stop(chk_shared *shared, int32_t rank, nsa_status status) {
  shared->result[rank] = (nsai_verify_result){ 0 };
  nsai_verify_fail(&shared->result[rank], "rank %d: %s", rank, nsa_last_error());
  shared->status[rank] = status;
  atomic_store(&shared->broken, 1);
}

nsa_status chk_shared_status(const chk_shared *shared) {
  for (int32_t i = 0; i < shared->size; i++)
    if (shared->status[i]) return nsai_fail(shared->status[i], "%s", shared->result[i].text);
  return NSA_OK;
}
