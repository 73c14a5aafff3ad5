/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "plan/spec.h"

#include "base/text.h"
#include "compile/templates.h"
#include "driver/arch.h"

#include <stdarg.h>
#include <string.h>

int32_t nsai_target_major(const nsai_target *target) {
  const nsai_arch *arch = nsai_arch_find(target->arch);
  return arch ? arch->major : 0;
}

const char *nsai_named_device(const char *arch, int index) {
  return index == 0 && !strcmp(arch, "sm_90a") ? NSAI_H200_NAME : NULL;
}

bool nsai_target_is(const nsai_target *target, const char *pattern) {
  return target->device && nsai_glob_match(pattern, target->device);
}

void nsai_refuse(nsai_reasons *reasons, const char *format, ...) {
  va_list args;
  va_start(args, format);
  nsai_write(&reasons->text, "      ");
  nsai_write_args(&reasons->text, format, args);
  nsai_write(&reasons->text, "\n");
  va_end(args);
  reasons->count++;
}

/* ---- what fits ---- */

void nsai_fit_shared(const nsai_target *target, uint32_t bytes, nsai_reasons *reasons) {
  uint32_t most = target->shared_bytes < NSAI_PORTABLE_SHARED_BYTES ? target->shared_bytes
                                                                    : NSAI_PORTABLE_SHARED_BYTES;
  if (bytes > most)
    nsai_refuse(reasons, "needs %u bytes of shared memory, at most %u are taken", bytes, most);
}

/* What the driver keeps of each CTA's shared memory. */
#define RESERVED_SHARED_BYTES 1024

void nsai_fit_cta(const nsai_target *target, uint32_t bytes, nsai_reasons *reasons) {
  if (bytes > target->shared_bytes)
    nsai_refuse(reasons, "needs %u bytes of shared memory, a CTA has %u here", bytes,
                target->shared_bytes);
}

bool nsai_holds_ctas(const nsai_target *target, uint32_t bytes, int32_t ctas) {
  uint64_t all = (uint64_t)target->shared_bytes + RESERVED_SHARED_BYTES;
  return (uint64_t)ctas * (bytes + RESERVED_SHARED_BYTES) <= all;
}

/* Of a multiprocessor of sm_90 and sm_100. */
#define MULTIPROCESSOR_THREADS 2048
#define MOST_REGISTERS 255 /* of a thread */

void nsai_fit_threads(const nsai_tiles *tiles, nsai_reasons *reasons) {
  int32_t threads = 32 * tiles->of[NSAI_TILE_WARPS], blocks = tiles->of[NSAI_TILE_CTAS];
  if (threads * blocks > MULTIPROCESSOR_THREADS)
    nsai_refuse(reasons, "%d blocks of %d threads are more than a multiprocessor takes", blocks,
                threads);
}

int32_t nsai_register_limit(int32_t threads) {
  int32_t share = NSAI_SM_REGISTERS / threads / 8 * 8; /* they are given out by eights */
  return share < MOST_REGISTERS ? share : MOST_REGISTERS;
}

/* ---- constants ---- */

void nsai_constant_add(nsai_kernel_spec *spec, const char *name, int64_t value) {
  spec->constants[spec->constant_count++] = (nsai_constant){ name, value };
}

int32_t nsai_padded_group(const nsai_model *model) {
  int32_t group = model->heads / model->kv_heads, padded = 1;
  while (padded < group) padded *= 2;
  return padded;
}

void nsai_legal_common(const nsai_problem *p, nsai_reasons *reasons) {
  if (p->model.dtype == NSA_F32)
    nsai_refuse(
        reasons,
        "model.dtype is f32: GPU kernels take bf16 and fp16, f32 runs with runtime.device: cpu");
}

void nsai_legal_ranking(const nsai_problem *p, const char *instead, nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  static const char text[] = "%s: it ranks blocks by the sum of the compressed branch's own "
                             "probabilities: take %s";
  if (m->by == NSAI_BY_INDEX) nsai_refuse(reasons, text, "model.select.by is index", instead);
  if (m->keys_only) nsai_refuse(reasons, text, "model.compress.output is false", instead);
  if (m->norm_block) nsai_refuse(reasons, text, "the model has a select.normalizer", instead);
  if (m->pool == NSAI_POOL_MAX && m->by != NSAI_BY_INDEX)
    nsai_refuse(reasons, text, "model.select.pool is max", instead);
}

void nsai_legal_packed(const nsai_problem *p, nsai_reasons *reasons) {
  if (nsai_problem_is_cached(p))
    nsai_refuse(reasons, "keys and values lie in a cache: it reads packed tensors");
}

void nsai_source_add(nsai_kernel_spec *spec, const nsai_problem *p, int32_t stride) {
  bool cached = nsai_problem_is_cached(p);
  nsai_constant_add(spec, "kCached", cached);
  if (cached) nsai_constant_add(spec, "kPageRows", p->page_size / stride);
}

void nsai_codes_add(nsai_kernel_spec *spec, int32_t dtype) {
  nsai_constant_add(spec, "kCodes", dtype == NSA_E4M3);
}

int32_t nsai_window_page_rows(const nsai_problem *p) {
  return p->window_ring ? 0 : (int32_t)p->page_size;
}

void nsai_window_source_add(nsai_kernel_spec *spec, const nsai_problem *p) {
  nsai_problem seen = *p;
  seen.page_size = nsai_window_page_rows(p);
  nsai_source_add(spec, &seen, 1);
}

void nsai_group_add(nsai_kernel_spec *spec, const nsai_problem *p) {
  const nsai_model *m = &p->model;
  nsai_constant_add(spec, "kGroup", m->heads / m->kv_heads);
  nsai_constant_add(spec, "kGroupPadded", nsai_padded_group(m));
}

void nsai_heads_add(nsai_kernel_spec *spec, const nsai_problem *p) {
  nsai_constant_add(spec, "kHeadDimQk", p->model.head_dim_qk);
  nsai_constant_add(spec, "kHeadDimV", p->model.head_dim_v);
  nsai_group_add(spec, p);
}

/* The gate MLP hands over logits. */
void nsai_gate_add(nsai_kernel_spec *spec, const nsai_problem *p) {
  const bool none = p->op == NSA_OP_DENSE || p->model.gate == NSAI_GATE_NONE;
  int gate = none ? 0 : p->model.gate == NSAI_GATE_WEIGHTS ? 1 : 2;
  nsai_constant_add(spec, "kGate", gate);
}

void nsai_blocks_add(nsai_kernel_spec *spec, const nsai_model *m) {
  nsai_constant_add(spec, "kBlock", m->block);
  nsai_constant_add(spec, "kStride", m->stride);
  nsai_constant_add(spec, "kSelectBlock", m->select_block);
  nsai_constant_add(spec, "kSelectCount", m->select_count);
  nsai_constant_add(spec, "kSelectInit", m->select_init);
  nsai_constant_add(spec, "kSelectLocal", m->select_local);
}

/* ---- the generated unit ---- */

void nsai_kernel_unit(const nsai_kernel_spec *spec, const nsai_problem *problem, nsai_writer *out) {
  nsai_write(out, "// ");
  nsai_problem_add_model(out, problem);
  nsai_write(out, "\n#include \"core/types.cuh\"\n\nstruct Config {\n  using Element = %s;\n",
             spec->dtype == NSA_F16 ? "Fp16" : "Bf16");
  nsai_write(out,
             "  static constexpr int kThreads = %d;\n  static constexpr int kSharedBytes = %u;\n",
             spec->threads, spec->shared_bytes);
  for (int i = 0; i < spec->constant_count; i++)
    nsai_write(out, "  static constexpr int %s = %lld;\n", spec->constants[i].name,
               (long long)spec->constants[i].value);
  const nsai_template *file = nsai_template_of(spec->entry);
  nsai_write(out, "};\n\n#include \"%s%s\"\n", file ? file->name : spec->entry, file ? "" : ".cuh");
}
