/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The few functions of NCCL that communicators use, opened at run time as those of cuda_api.h are,
 * and declared here, so that the library builds without NCCL's header. Works with NCCL 2.14 and
 * newer, the first version with communicators that do not block.
 */
#ifndef NSAI_DRIVER_NCCL_H
#define NSAI_DRIVER_NCCL_H

#include "driver/cuda_api.h"

#include <limits.h>
#include <stddef.h>

typedef int32_t nsai_nccl_result; /* ncclResult_t; 0 is success */
typedef struct ncclComm *nsai_nccl_comm;

enum { NSAI_NCCL_SUCCESS = 0, NSAI_NCCL_IN_PROGRESS = 7 };
enum { NSAI_NCCL_UINT8 = 1 }; /* ncclDataType_t */

/* ncclUniqueId, which is passed by value. */
typedef struct nsai_nccl_id {
  char bytes[128];
} nsai_nccl_id;

/* The head of ncclConfig_t, as version 2.17 has it; NCCL takes `size` bytes of it and its defaults for
 * what follows. That of 2.14 ends before `cga_cluster_size`, where it has padding. */
typedef struct nsai_nccl_config {
  size_t size;
  uint32_t magic, version;
  int32_t blocking, cga_cluster_size;
  int32_t min_ctas, max_ctas;
} nsai_nccl_config;
_Static_assert(offsetof(nsai_nccl_config, min_ctas) == 24, "ncclConfig_t of NCCL 2.14 is 24 bytes");
#define NSAI_NCCL_CONFIG_INIT                                                                      \
  { offsetof(nsai_nccl_config, min_ctas), 0xcafebeef, 21400, INT_MIN, INT_MIN, INT_MIN, INT_MIN }

/* Limits the CTAs of an exchange, with NCCL of this version or newer. */
#define NSAI_NCCL_LIMITS_CTAS 21700
static inline void nsai_nccl_limit_ctas(nsai_nccl_config *config, int32_t most) {
  config->size = sizeof *config;
  config->version = NSAI_NCCL_LIMITS_CTAS;
  config->max_ctas = most;
}

/* clang-format off */
#define NSAI_NCCL_TABLE(X)                                                                         \
  X(REQUIRED, nsai_nccl_result, ncclGetVersion, (int *version))                                    \
  X(REQUIRED, const char *, ncclGetErrorString, (nsai_nccl_result))                                \
  X(OPTIONAL, const char *, ncclGetLastError, (nsai_nccl_comm))                                    \
  X(REQUIRED, nsai_nccl_result, ncclGetUniqueId, (nsai_nccl_id *))                                 \
  X(REQUIRED, nsai_nccl_result, ncclCommInitRankConfig,                                            \
    (nsai_nccl_comm *, int ranks, nsai_nccl_id, int rank, nsai_nccl_config *))                     \
  X(REQUIRED, nsai_nccl_result, ncclCommFinalize, (nsai_nccl_comm))                                \
  X(REQUIRED, nsai_nccl_result, ncclCommDestroy, (nsai_nccl_comm))                                 \
  X(REQUIRED, nsai_nccl_result, ncclCommAbort, (nsai_nccl_comm))                                   \
  X(REQUIRED, nsai_nccl_result, ncclCommGetAsyncError, (nsai_nccl_comm, nsai_nccl_result *))       \
  X(REQUIRED, nsai_nccl_result, ncclCommCount, (nsai_nccl_comm, int *))                            \
  X(REQUIRED, nsai_nccl_result, ncclCommUserRank, (nsai_nccl_comm, int *))                         \
  X(REQUIRED, nsai_nccl_result, ncclCommCuDevice, (nsai_nccl_comm, int *))                         \
  X(REQUIRED, nsai_nccl_result, ncclGroupStart, (void))                                            \
  X(REQUIRED, nsai_nccl_result, ncclGroupEnd, (void))                                              \
  X(REQUIRED, nsai_nccl_result, ncclSend,                                                          \
    (const void *, size_t count, int32_t type, int peer, nsai_nccl_comm, nsai_cu_stream))          \
  X(REQUIRED, nsai_nccl_result, ncclRecv,                                                          \
    (void *, size_t count, int32_t type, int peer, nsai_nccl_comm, nsai_cu_stream))                \
  X(REQUIRED, nsai_nccl_result, ncclAllGather,                                                     \
    (const void *send, void *recv, size_t count, int32_t type, nsai_nccl_comm, nsai_cu_stream))
/* clang-format on */

#define NSAI_NCCL_MEMBER(need, result, name, params) result(*name) params;
typedef struct nsai_nccl {
  NSAI_NCCL_TABLE(NSAI_NCCL_MEMBER)
  nsai_library library;
  nsai_tried tried;
  int32_t version; /* 22803 is 2.28.3 */
} nsai_nccl;
#undef NSAI_NCCL_MEMBER

extern const nsai_library_spec nsai_nccl_spec;

/* Opens NCCL: the process' own copy first. `path`: explicit path of libnccl, or NULL. `out`: static
 * storage of the process. NSA_E_UNSUPPORTED (missing, too old), NSA_E_NOMEM. Thread-safe. */
nsa_status nsai_nccl_open(const char *path, nsai_logger *logger, const nsai_nccl **out);

/* Converts a foreign code to NSA_E_RANKS with the call's name and NCCL's text. NSAI_NCCL_IN_PROGRESS is
 * no failure. */
nsa_status nsai_nccl_status(const nsai_nccl *nccl, nsai_nccl_result result, const char *call);

/* NSAI_TRY(NSAI_NCCL(nccl, ncclGroupStart())) */
#define NSAI_NCCL(nccl, call) nsai_nccl_status((nccl), (nccl)->call, #call)

#endif /* NSAI_DRIVER_NCCL_H */
