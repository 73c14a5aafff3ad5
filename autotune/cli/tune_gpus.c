/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "cli/tune_gpus.h"

#include "cli/child.h"
#include "cli/cli.h"
#include "driver/device.h"

#include <stdio.h>
#include <string.h>

/* ---- the value of --device ---- */

static bool is_all(const char *devices) { return !strcmp(devices, "all"); }

bool nsai_tune_gpus_several(const char *devices) {
  return is_all(devices) || strchr(devices, ',') != NULL;
}

#define NAME_BYTES 64 /* a UUID has 40 characters */

/* Copies the next name of the list and moves behind it; false: there is none, or it is too long. */
static bool take_name(const char **list, char name[NAME_BYTES]) {
  size_t length = strcspn(*list, ",");
  if (!length || length >= NAME_BYTES) return false;
  memcpy(name, *list, length);
  name[length] = '\0';
  *list += length + ((*list)[length] == ',');
  return true;
}

const char *nsai_tune_gpus_refuse(const char *devices) {
  char name[NAME_BYTES];
  int count = 0;
  if (!*devices || devices[strlen(devices) - 1] == ',') return "a name is missing";
  if (is_all(devices)) return NULL;
  for (; *devices; count++) {
    if (*devices == ',') return "a name is missing";
    if (!take_name(&devices, name)) return "a name is too long";
    if (is_all(name)) return "\"all\" stands alone";
  }
  return count > NSAI_TUNE_MAX_GPUS ? "these are too many" : NULL;
}

/* Runs `work` in a child, and reports why it did not return; `doing` says what it did. `*died`: a
 * signal ended it. Returns an exit code. */
static int run_child(int (*work)(void *user), void *user, const char *doing, bool *died) {
  int code = NSAI_EXIT_FAILURE;
  *died = false;
  nsa_status status = nsai_child_fork(work, user, &code);
  if (status != NSA_OK) return nsai_cli_fail(status);
  *died = code > 128 && code != NSAI_EXIT_INTERRUPTED;
  if (!*died) return code;
  nsai_cli_error("the process that %s was ended by signal %d", doing, code - 128);
  return NSAI_EXIT_FAILURE;
}

/* ---- finding ---- */

/* Adds a GPU unless it is listed. One that cannot be used is listed with the reason. */
static void add_gpu(const nsai_driver *driver, nsai_cu_device ordinal, nsai_tune_gpus *gpus) {
  nsai_device device;
  for (int32_t i = 0; i < gpus->count; i++)
    if (gpus->gpu[i].ordinal == ordinal) return;
  nsai_tune_gpu *gpu = &gpus->gpu[gpus->count++];
  gpu->ordinal = ordinal;
  gpu->status = nsai_device_describe(driver, ordinal, &device);
  if (gpu->status != NSA_OK) snprintf(gpu->why, sizeof gpu->why, "%s", nsa_last_error());
  snprintf(gpu->name, sizeof gpu->name, "%s", device.name);
  if (device.arch) snprintf(gpu->arch, sizeof gpu->arch, "%s", device.arch->name);
  gpu->sms = device.sm_count;
}

static nsa_status add_all(const nsai_driver *driver, nsai_tune_gpus *gpus) {
  nsai_cu_device device;
  int count = 0;
  NSAI_TRY(NSAI_CUDA(driver, cuDeviceGetCount(&count)));
  if (!count)
    NSAI_TRY(nsai_device_find(driver, "auto", &device)); /* its sentence says what to do */
  if (count > NSAI_TUNE_MAX_GPUS)
    return nsai_fail(NSA_E_UNSUPPORTED, "%d GPUs are visible: name at most %d of them", count,
                     NSAI_TUNE_MAX_GPUS);
  for (int i = 0; i < count; i++) {
    NSAI_TRY(NSAI_CUDA(driver, cuDeviceGet(&device, i)));
    add_gpu(driver, device, gpus);
  }
  return NSA_OK;
}

typedef struct search {
  const char *devices, *driver_path;
  nsai_tune_gpus *gpus;
} search;

static nsa_status find(const search *s) {
  const nsai_driver *driver;
  const char *rest = s->devices;
  char name[NAME_BYTES];
  NSAI_TRY(nsai_driver_open(s->driver_path, NULL, &driver));
  s->gpus->all = is_all(s->devices);
  if (s->gpus->all) return add_all(driver, s->gpus);
  while (take_name(&rest, name)) {
    nsai_cu_device device;
    NSAI_TRY(nsai_device_find(driver, name, &device));
    add_gpu(driver, device, s->gpus);
  }
  return NSA_OK;
}

static int find_in_child(void *user) { return nsai_cli_exit(find(user)); }

/* Reports the GPUs that cannot be used, and counts the others; returns the exit code. */
static int report_unusable(nsai_tune_gpus *gpus) {
  int code = NSAI_EXIT_OK;
  for (int32_t i = 0; i < gpus->count; i++) {
    const nsai_tune_gpu *gpu = &gpus->gpu[i];
    gpus->usable += gpu->status == NSA_OK;
    if (gpu->status == NSA_OK) continue;
    if (gpus->all && (gpu->status == NSA_E_UNSUPPORTED || gpu->status == NSA_E_NO_DEVICE)) {
      fprintf(stderr, "cuda:%d is left out: %s\n", gpu->ordinal, gpu->why);
      continue;
    }
    nsai_cli_error("cuda:%d: %s", gpu->ordinal, gpu->why);
    code = nsai_cli_exit_code(gpu->status);
  }
  if (gpus->usable || code != NSAI_EXIT_OK) return code;
  nsai_cli_error("no visible GPU can be used");
  return NSAI_EXIT_NO_GPU;
}

int nsai_tune_gpus_find(const char *devices, const char *driver_path, nsai_tune_gpus *out) {
  search s = { devices, driver_path, out };
  bool died;
  int code = run_child(find_in_child, &s, "looked for GPUs", &died);
  return code == NSAI_EXIT_OK ? report_unusable(out) : code;
}

/* ---- kinds ---- */

static bool same_kind(const nsai_tune_gpu *a, const nsai_tune_gpu *b) {
  return !strcmp(a->name, b->name) && !strcmp(a->arch, b->arch) && a->sms == b->sms;
}

/* The usable GPUs of the kind of gpu[first]; 0: it cannot be used, or an earlier one is of its kind. */
static int32_t list_kind(const nsai_tune_gpus *gpus, int32_t first,
                         int32_t index[NSAI_TUNE_MAX_GPUS]) {
  int32_t count = 0;
  for (int32_t i = 0; i < gpus->count; i++) {
    if (gpus->gpu[i].status != NSA_OK || !same_kind(&gpus->gpu[i], &gpus->gpu[first])) continue;
    if (!count && i != first) return 0;
    index[count++] = i;
  }
  return count;
}

/* ---- tuning ---- */

/* Tuning on one GPU of a kind. */
typedef struct attempt {
  nsai_tune_gpu_fn tune;
  void *user;
  int32_t gpu, serves[NSAI_TUNE_MAX_GPUS], count;
  nsa_status *status; /* in shared memory */
} attempt;

static int tune_in_child(void *user) {
  const attempt *t = user;
  return t->tune(t->user, t->gpu, t->serves, t->count, t->status);
}

static void announce(const nsai_tune_gpu *gpu, const attempt *t, const char *file) {
  int32_t others = 0;
  fprintf(stderr, "%s: tuning on cuda:%d (%s)", file, gpu->ordinal, gpu->name);
  for (int32_t i = 0; i < t->count; i++)
    if (t->serves[i] != gpu->ordinal)
      fprintf(stderr, "%scuda:%d", others++ ? ", " : ", also for ", t->serves[i]);
  fputc('\n', stderr);
}

/* Makes one attempt. `*goes_on`: another GPU of the kind may succeed where this one failed. */
static int run_attempt(attempt *t, const nsai_tune_gpu *gpu, bool *goes_on) {
  char doing[32];
  bool died;
  t->gpu = gpu->ordinal;
  *t->status = NSA_OK;
  snprintf(doing, sizeof doing, "tuned on cuda:%d", gpu->ordinal);
  int code = run_child(tune_in_child, t, doing, &died);
  *goes_on = died || *t->status == NSA_E_CUDA || *t->status == NSA_E_NO_DEVICE;
  return code;
}

static int tune_kind(const nsai_tune_gpus *gpus, const int32_t *index, attempt *t,
                     const char *file) {
  int code = NSAI_EXIT_OK;
  for (int32_t i = 0; i < t->count; i++) t->serves[i] = gpus->gpu[index[i]].ordinal;
  for (int32_t i = 0; i < t->count; i++) {
    const nsai_tune_gpu *gpu = &gpus->gpu[index[i]];
    bool goes_on;
    if (nsai_cli_interrupted()) return NSAI_EXIT_INTERRUPTED;
    announce(gpu, t, file);
    int own = run_attempt(t, gpu, &goes_on);
    if (own == NSAI_EXIT_INTERRUPTED) return own;
    if (own == NSAI_EXIT_OK) return code; /* that of a GPU before, if one failed */
    code = own;
    if (goes_on && i + 1 < t->count)
      fprintf(stderr, "%s: cuda:%d (%s) failed; cuda:%d, of the same kind, takes its place\n", file,
              gpu->ordinal, gpu->name, t->serves[i + 1]);
    else
      fprintf(stderr, "%s: cuda:%d (%s) failed\n", file, gpu->ordinal, gpu->name);
    if (!goes_on) return code;
  }
  return code;
}

int nsai_tune_gpus_each(const nsai_tune_gpus *gpus, const char *file, nsai_tune_gpu_fn tune,
                        void *user) {
  attempt t = { .tune = tune, .user = user, .status = nsai_child_memory(sizeof *t.status) };
  if (!t.status) return nsai_cli_fail(nsai_fail_nomem("the end of a child", sizeof *t.status));
  int code = NSAI_EXIT_OK;
  for (int32_t i = 0; i < gpus->count && code != NSAI_EXIT_INTERRUPTED; i++) {
    int32_t index[NSAI_TUNE_MAX_GPUS];
    t.count = list_kind(gpus, i, index);
    int own = t.count ? tune_kind(gpus, index, &t, file) : NSAI_EXIT_OK;
    if (own != NSAI_EXIT_OK) code = own;
  }
  return code;
}
