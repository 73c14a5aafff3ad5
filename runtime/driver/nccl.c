/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "driver/nccl.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static const char *const nccl_names[] = { "libnccl.so.2", NULL };

const nsai_library_spec nsai_nccl_spec = {
  "NCCL",
  nccl_names,
  "NSA_NCCL_PATH",
  "runtime.nccl_path",
  nsai_toolkit_folders,
  nsai_wheel_folders,
  NSA_E_UNSUPPORTED,
  "install NVIDIA's package libnccl2 or the Python wheel nvidia-nccl-cu13",
};

enum { REQUIRED = 1, OPTIONAL = 0 };

static nsa_status start_nccl(void *table) {
  nsai_nccl *api = table;
  int version = 0;
#define RESOLVE(need, result, name, params)                                                        \
  {                                                                                                \
    void *symbol = dlsym(api->library.handle, #name);                                              \
    if (!symbol && need == REQUIRED)                                                               \
      return nsai_library_fail_symbol(&nsai_nccl_spec, &api->library, #name);                      \
    memcpy(&api->name, &symbol, sizeof api->name);                                                 \
  }
  NSAI_NCCL_TABLE(RESOLVE)
#undef RESOLVE
  NSAI_TRY(NSAI_NCCL(api, ncclGetVersion(&version)));
  api->version = version;
  return NSA_OK;
}

nsa_status nsai_nccl_open(const char *path, nsai_logger *logger, const nsai_nccl **out) {
  static const nsai_library_kind kind = { &nsai_nccl_spec, sizeof(nsai_nccl),
                                          offsetof(nsai_nccl, library), offsetof(nsai_nccl, tried),
                                          start_nccl };
  const nsai_library_query query = { path, 0 };
  const void *table;
  nsa_status status = nsai_library_open_kind(&kind, &query, logger, &table);
  *out = table;
  return status;
}

nsa_status nsai_nccl_status(const nsai_nccl *nccl, nsai_nccl_result result, const char *call) {
  if (result == NSAI_NCCL_SUCCESS || result == NSAI_NCCL_IN_PROGRESS) return NSA_OK;
  const char *last = nccl->ncclGetLastError ? nccl->ncclGetLastError(NULL) : NULL;
  return nsai_fail_foreign(NSA_E_RANKS, (int)result, "%.*s: %s (%d)%s%s", (int)strcspn(call, "("),
                           call, nccl->ncclGetErrorString(result), (int)result,
                           last && last[0] ? ": " : "", last ? last : "");
}
