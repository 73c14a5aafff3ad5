/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The variant table and the choice among its rows. To add a variant: a kernel file and one row
 * here, with its functions in the file of its stage (attend.c, selection.c, compress.c).
 */
#include "variants.h"

#include "arch.h"
#include "stages.h"

#include "text.h"

#include <stdio.h>
#include <string.h>

const nsai_variant nsai_variants[] = {
  { "compress_mean", NSAI_STAGE_COMPRESS, "phi mean in one pass over K and V", true, true,
    nsai_legal_compress_mean, NULL, nsai_specify_compress_mean },
  { "compress_gemm", NSAI_STAGE_COMPRESS, "phi linear and mlp: gathered rows through cuBLASLt",
    true, true, nsai_legal_compress_gemm, NULL, nsai_specify_compress_gemm },
  { "attend_compressed_mma", NSAI_STAGE_ATTEND_COMPRESSED,
    "flash attention over compressed tokens, mma.sync", true, true,
    nsai_legal_attend_compressed_mma, NULL, nsai_specify_attend_compressed_mma },
  { "importance_mma", NSAI_STAGE_IMPORTANCE,
    "second pass over q k^T with the known LSE, exact in fp32", true, true,
    nsai_legal_importance_mma, NULL, nsai_specify_importance_mma },
  { "select_topn", NSAI_STAGE_SELECT, "one warp a row, running best in registers", true, true,
    nsai_legal_select_topn, NULL, nsai_specify_select_topn },
  { "selected_dense_mma", NSAI_STAGE_ATTEND_SELECTED,
    "dense causal attention, exact while every block is chosen", true, true,
    nsai_legal_selected_dense_mma, NULL, nsai_specify_selected_dense_mma },
  { "attend_selected_mma", NSAI_STAGE_ATTEND_SELECTED, "union of adjacent tokens' blocks, mma.sync",
    true, true, nsai_legal_attend_selected_mma, NULL, nsai_specify_attend_selected_mma },
  { "attend_window_mma", NSAI_STAGE_ATTEND_WINDOW,
    "flash attention over a sliding window, mma.sync", true, true, nsai_legal_attend_window_mma,
    NULL, nsai_specify_attend_window_mma },
  { "dense_mma", NSAI_STAGE_DENSE, "flash attention over all earlier tokens, mma.sync", true, true,
    nsai_legal_dense_mma, NULL, nsai_specify_dense_mma },
  { "sdpa_gemm", NSAI_STAGE_DENSE, "unfused baseline: q k^T, softmax and p v through cuBLASLt",
    true, true, nsai_legal_sdpa_gemm, nsai_sensible_sdpa_gemm, nsai_specify_sdpa_gemm },
};
const int nsai_variant_count = sizeof nsai_variants / sizeof *nsai_variants;

bool nsai_stage_needed(const nsai_problem *p, nsai_stage stage) {
  const nsai_geometry *m = &p->model;
  if (p->op == NSA_OP_DENSE) return stage == NSAI_STAGE_DENSE;
  switch (stage) {
  case NSAI_STAGE_COMPRESS: return m->phi != NSAI_PHI_EXTERNAL;
  case NSAI_STAGE_ATTEND_COMPRESSED: return true;
  case NSAI_STAGE_IMPORTANCE:
    return p->max_probe_rows || (m->select_count && p->selection == NSA_SELECT_OWN);
  case NSAI_STAGE_SELECT: return m->select_count && p->selection == NSA_SELECT_OWN;
  case NSAI_STAGE_ATTEND_SELECTED: return m->select_count > 0;
  case NSAI_STAGE_ATTEND_WINDOW: return m->window > 0;
  case NSAI_STAGE_DENSE:
  case NSAI_STAGE_COUNT: return false;
  }
  return false;
}

int32_t nsai_target_major(const nsai_target *target) {
  const nsai_arch *arch = nsai_arch_find(target->arch);
  return arch ? arch->major : 0;
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

bool nsai_variant_matches(const nsai_variant *variant, const char *pattern) {
  char full[96];
  snprintf(full, sizeof full, "%s.%s", nsai_stage_name(variant->stage), variant->name);
  return nsai_glob_match(pattern, full);
}

/* Whatever the shapes were chosen by, a block must get the shared memory it asks for. */
static void check_shared(const nsai_problem *problem, const nsai_target *target,
                         const nsai_variant *variant, nsai_reasons *reasons) {
  nsai_kernel_spec specs[NSAI_ROLES] = { 0 };
  variant->specify(problem, target, specs);
  for (int role = 0; role < NSAI_ROLES; role++)
    if (specs[role].shared_bytes > target->shared_bytes)
      nsai_refuse(reasons, "%s needs %u bytes of shared memory, a block has %u here",
                  specs[role].entry, specs[role].shared_bytes, target->shared_bytes);
}

void nsai_variant_judge(const nsai_config *config, const nsai_problem *problem,
                        const nsai_target *target, const nsai_variant *variant,
                        nsai_reasons *reasons) {
  const char *forced = config->variants.force[variant->stage];
  if (forced && strcmp(forced, variant->name))
    nsai_refuse(reasons, "variants.force asks for %s", forced);
  for (size_t i = 0; i < config->variants.disable.count; i++)
    if (nsai_variant_matches(variant, config->variants.disable.items[i]))
      nsai_refuse(reasons, "variants.disable matches it with \"%s\"",
                  config->variants.disable.items[i]);
  if (problem->deterministic && !variant->deterministic)
    nsai_refuse(reasons, "deterministic is asked for, and its results differ from run to run");
  if (problem->parity && !variant->fp32_importance)
    nsai_refuse(reasons, "parity is asked for, and its importance is less exact than fp32");
  int before = reasons->count;
  variant->legal(problem, target, reasons);
  if (reasons->count == before) check_shared(problem, target, variant, reasons);
}

/* Chooses one stage's variant and appends the whole story to `text`. */
static const nsai_variant *choose_stage(const nsai_config *config, const nsai_problem *problem,
                                        const nsai_target *target, nsai_stage stage,
                                        nsai_writer *text) {
  const nsai_variant *chosen = NULL;
  const char *forced = config->variants.force[stage];
  nsai_write(text, "  %s:\n", nsai_stage_name(stage));
  for (int i = 0; i < nsai_variant_count; i++) {
    const nsai_variant *v = &nsai_variants[i];
    if (v->stage != stage) continue;
    /* Counted first, so that the verdict can stand above the reasons, however many there are. */
    nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
    nsai_variant_judge(config, problem, target, v, &reasons);
    bool sensible = !v->sensible || v->sensible(problem, target) || forced;
    if (reasons.count) {
      nsai_write(text, "    %s: no\n", v->name);
      reasons = (nsai_reasons){ *text, 0 };
      nsai_variant_judge(config, problem, target, v, &reasons);
      *text = reasons.text;
    } else if (chosen || !sensible) {
      nsai_write(text, "    %s: possible, not chosen (%s)\n", v->name,
                 chosen ? "lower in the table" : "a baseline");
    } else {
      chosen = v;
      nsai_write(text, "    %s: chosen (%s): %s\n", v->name,
                 forced ? "variants.force" : "first legal in the table", v->why);
    }
  }
  return chosen;
}

nsa_status nsai_choose(const nsai_config *config, const nsai_problem *problem,
                       const nsai_target *target, nsai_writer *explain, nsai_choice *out) {
  char story[12288];
  nsai_writer own = nsai_writer_open(story, sizeof story);
  nsai_writer *text = explain ? explain : &own;
  bool complete = true;
  memset(out, 0, sizeof *out);
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    if (!nsai_stage_needed(problem, (nsai_stage)s)) continue;
    out->variant[s] = choose_stage(config, problem, target, (nsai_stage)s, text);
    if (out->variant[s])
      out->variant[s]->specify(problem, target, out->specs);
    else
      complete = false;
  }
  if (complete && problem->model.gate == NSAI_GATE_MLP && problem->op == NSA_OP_FORWARD)
    nsai_specify_gate(problem, out->specs);
  if (complete) return NSA_OK;
  return nsai_fail(NSA_E_UNSUPPORTED, "no variant can serve a stage of this problem on %s:\n%s",
                   target->arch, explain ? "(see the explanation)" : story);
}

void nsai_kernel_unit(const nsai_kernel_spec *spec, const nsai_problem *problem, nsai_writer *out) {
  nsai_write(out, "// ");
  nsai_problem_add_geometry(out, problem);
  nsai_write(out, "\n#include \"common/types.cuh\"\n\nstruct Config {\n  using Element = %s;\n",
             spec->dtype == NSA_F16 ? "Fp16" : "Bf16");
  nsai_write(out,
             "  static constexpr int kThreads = %d;\n  static constexpr int kSharedBytes = %u;\n",
             spec->threads, spec->shared_bytes);
  for (int i = 0; i < spec->constant_count; i++)
    nsai_write(out, "  static constexpr int %s = %lld;\n", spec->constants[i].name,
               (long long)spec->constants[i].value);
  nsai_write(out, "};\n\n#include \"%s.cuh\"\n", spec->entry);
}
