/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/case.h"

#include "plan/variant.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[NSAI_VERIFY_KINDS] = {
  [NSAI_VERIFY_FORWARD] = "fwd",           [NSAI_VERIFY_COMPRESS] = "compress",
  [NSAI_VERIFY_SELECT] = "select",         [NSAI_VERIFY_DENSE] = "dense",
  [NSAI_VERIFY_BACKWARD] = "bwd",          [NSAI_VERIFY_REPEAT] = "repeat",
  [NSAI_VERIFY_ALL_BLOCKS] = "all_blocks", [NSAI_VERIFY_WIDE_WINDOW] = "wide",
  [NSAI_VERIFY_FUTURE] = "future",         [NSAI_VERIFY_PERMUTE] = "permute",
  [NSAI_VERIFY_SCALE_V] = "scale_v",       [NSAI_VERIFY_ZERO_GATE] = "zero_gate",
  [NSAI_VERIFY_INFINITE] = "infinite",     [NSAI_VERIFY_SPLIT] = "split",
  [NSAI_VERIFY_GRAPH] = "graph",           [NSAI_VERIFY_STREAMS] = "streams",
  [NSAI_VERIFY_NEEDLE] = "needle",         [NSAI_VERIFY_INDEX_KL] = "kl",
};
static const char *const fill_names[NSAI_VERIFY_FILLS] = { "random", "correlated", "large",
                                                           "constant", "tiny" };
static const char *const layout_names[NSAI_VERIFY_LAYOUTS] = { "plain", "strided", "packed",
                                                               "heads", "shared" };
static const char *const phi_names[] = { "mean", "linear", "mlp", "external", "none" };
static const char *const gate_names[] = { "weights", "logits", "mlp", "none" };
static const char *const act_names[] = { "relu", "silu", "gelu" };
static const char *const recompute_names[] = { "auto", "always", "never" };
static const char *const select_names[] = { "topn", "blocks", "ranges", "all" };

const char *nsai_verify_fill_name(nsai_verify_fill fill) { return fill_names[fill]; }

int64_t nsai_verify_total(const int64_t *len, int32_t count) {
  int64_t sum = 0;
  for (int32_t i = 0; i < count; i++) sum += len[i];
  return sum;
}

void nsai_verify_case_init(nsai_verify_case *c) {
  memset(c, 0, sizeof *c);
  c->model = (nsai_model){ .heads = 4,
                           .kv_heads = 2,
                           .head_dim_qk = 64,
                           .head_dim_v = 64,
                           .block = 32,
                           .stride = 16,
                           .select_block = 64,
                           .select_count = 4,
                           .select_init = 1,
                           .select_local = 2,
                           .window = 64,
                           .dtype = NSA_BF16,
                           .phi = NSAI_PHI_MEAN,
                           .gate = NSAI_GATE_LOGITS };
  c->selection = NSA_SELECT_TOPN;
  c->num_seqs = 1;
  c->q_len[0] = c->kv_len[0] = 200;
  c->seed = 1;
}

/* ---- parsing --------------------------------------------------------------------------------- */

/* The index in `names` of the first word of `text`, which ends at a '.', or -1. */
static int find_word(const char *text, const char *const *names, int count) {
  size_t length = strcspn(text, ".");
  for (int i = 0; i < count; i++)
    if (strlen(names[i]) == length && !memcmp(names[i], text, length)) return i;
  return -1;
}

/* The index in `names` of the whole `text`, or -1. */
static int find_name(const char *text, const char *const *names, int count) {
  return strchr(text, '.') ? -1 : find_word(text, names, count);
}

/* The same where the word may be followed by `more`, ".f32". */
static int find_with(const char *text, const char *const *names, int count, const char *more,
                     int32_t *has_more) {
  int found = find_word(text, names, count);
  const char *rest = text + strcspn(text, ".");
  *has_more = !strcmp(rest, more);
  return *rest && !*has_more ? -1 : found;
}

/* Reads a decimal number up to `most`, without a sign, and moves *text past it. False: there is
 * none, or it is larger. */
static bool take_number(const char **text, uint64_t most, uint64_t *out) {
  char *end;
  if (**text < '0' || **text > '9') return false;
  errno = 0;
  *out = strtoull(*text, &end, 10);
  *text = end;
  return !errno && *out <= most;
}

/* Reads the whole text as a number. Returns 0, or -1. */
static int parse_number(const char *text, uint64_t most, uint64_t *out) {
  return take_number(&text, most, out) && !*text ? 0 : -1;
}

/* Reads "h64/4" by the form "h#/#": every # is a number, which goes to the next of `out`. Returns 0,
 * or -1. */
static int parse_form(const char *text, const char *form, int32_t *const *out) {
  uint64_t value;
  for (; *form; form++) {
    if (*form != '#') {
      if (*text++ != *form) return -1;
    } else if (take_number(&text, INT32_MAX, &value)) {
      **out++ = (int32_t)value;
    } else {
      return -1;
    }
  }
  return *text ? -1 : 0;
}

/* Reads "5,0,130" or "200x3" (200 three times). Returns the count, or -1. */
static int parse_lengths(const char *text, int64_t *out) {
  int count = 0;
  while (*text) {
    uint64_t value, times = 1;
    if (!take_number(&text, NSAI_MAX_ROWS, &value)) return -1;
    if (*text == 'x' && (text++, !take_number(&text, NSAI_VERIFY_MAX_SEQS, &times))) return -1;
    for (; times > 0; times--) {
      if (count == NSAI_VERIFY_MAX_SEQS) return -1;
      out[count++] = (int64_t)value;
    }
    if (*text && *text != ',') return -1;
    text += *text == ',';
  }
  return count;
}

/* Reads the activation behind the last '.' of "mlp.64.gelu" into *out, and cuts it off `text`, which
 * keeps its numbers. Without one it is silu. Returns 0, or -1. */
static int cut_activation(char *text, nsai_activation *out) {
  char *last = strrchr(text, '.');
  *out = NSAI_ACT_SILU;
  if (!last || (last[1] >= '0' && last[1] <= '9')) return 0;
  int found = find_name(last + 1, act_names, 3);
  *out = (nsai_activation)found;
  *last = '\0';
  return found < 0 ? -1 : 0;
}

static int parse_phi(char *value, nsai_model *g) {
  int found = find_word(value, phi_names, 5);
  if (found < 0) return -1;
  g->phi = (nsai_phi_kind)found;
  if (g->phi != NSAI_PHI_MLP) return find_name(value, phi_names, 5) < 0 ? -1 : 0;
  int32_t *const numbers[] = { &g->phi_hidden };
  return cut_activation(value, &g->phi_activation) ? -1 : parse_form(value, "mlp.#", numbers);
}

static int parse_gate(char *value, nsai_verify_case *c) {
  nsai_model *g = &c->model;
  int found = find_word(value, gate_names, 4);
  if (found < 0) return -1;
  g->gate = (nsai_gate_kind)found;
  if (g->gate == NSAI_GATE_NONE) return find_name(value, gate_names, 4) < 0 ? -1 : 0;
  if (g->gate != NSAI_GATE_MLP)
    return find_with(value, gate_names, 3, ".f32", &c->gate_f32) < 0 ? -1 : 0;
  int32_t *const numbers[] = { &g->gate_channels, &g->gate_hidden };
  return cut_activation(value, &g->gate_activation) ? -1 : parse_form(value, "mlp.#.#", numbers);
}

/* A finite number, or -1 is returned. */
static int parse_scale(const char *text, float *out) {
  char *end;
  *out = strtof(text, &end);
  bool good = *text && !*end && end == text + strspn(text, "0123456789.eE+-");
  return good && isfinite(*out) ? 0 : -1;
}

/* One of the fields with a word. Returns 0, -1, or 1: it is none of them. */
static int parse_word(const char *name, const char *value, nsai_verify_case *c) {
  int found;
  if (!strcmp(name, "sel")) {
    found = find_with(value, select_names, 4, ".shared", &c->index_shared);
    c->selection = NSA_SELECT_TOPN + found;
  } else if (!strcmp(name, "recompute")) {
    c->recompute = found = find_name(value, recompute_names, 3);
  } else if (!strcmp(name, "fill")) {
    found = find_name(value, fill_names, NSAI_VERIFY_FILLS);
    c->fill = (nsai_verify_fill)found;
  } else if (!strcmp(name, "layout")) {
    found = find_name(value, layout_names, NSAI_VERIFY_LAYOUTS);
    c->layout = (nsai_verify_layout)found;
  } else {
    return 1;
  }
  return found < 0 ? -1 : 0;
}

/* One of the fields with a number. Returns 0, or -1. */
static int parse_count(const char *name, const char *value, nsai_verify_case *c) {
  uint64_t number = 0;
  if (!strcmp(name, "seed")) return parse_number(value, UINT64_MAX, &c->seed);
  if (parse_number(value, UINT32_MAX, &number)) return -1;
  if (!strcmp(name, "branches")) return c->branches = (uint32_t)number, 0;
  if (!strcmp(name, "wanted")) return c->wanted = (uint32_t)number, 0;
  if (number > NSAI_MAX_ROWS) return -1;
  if (!strcmp(name, "slack")) return c->slack = (int64_t)number, 0;
  if (!strcmp(name, "again") && number) return c->again = (int32_t)number, 0;
  return -1;
}

/* How blocks are ranked: "pool=max", "norm=128/64", "cmp=keys", "index=128". Returns 0, -1, or 1: it is none. */
static int parse_ranking(const char *name, const char *value, nsai_model *g) {
  int32_t *const norm[] = { &g->norm_block, &g->norm_stride };
  if (!strcmp(name, "norm")) return parse_form(value, "#/#", norm);
  if (!strcmp(name, "index")) {
    int32_t *const dim[] = { &g->index_dim };
    g->by = NSAI_BY_INDEX, g->phi = NSAI_PHI_NONE, g->pool = NSAI_POOL_MAX;
    return parse_form(value, "#", dim);
  }
  if (!strcmp(name, "pool") && !strcmp(value, "max")) return g->pool = NSAI_POOL_MAX, 0;
  if (!strcmp(name, "cmp") && !strcmp(value, "keys")) return g->keys_only = 1, 0;
  return 1;
}

/* One "name=value" field. Returns 0, or -1. */
static int parse_named(const char *name, char *value, nsai_verify_case *c, int *q_count) {
  if (!strcmp(name, "phi")) return parse_phi(value, &c->model);
  if (!strcmp(name, "gate")) return parse_gate(value, c);
  if (!strcmp(name, "kv") && (!strcmp(value, "shared") || !strcmp(value, "branches"))) {
    c->model.per_branch = value[0] == 'b';
    return 0;
  }
  if (!strcmp(name, "kv") || !strcmp(name, "q")) {
    int count = parse_lengths(value, name[0] == 'q' ? c->q_len : c->kv_len);
    if (count < 1) return -1;
    if (name[0] == 'q')
      *q_count = count;
    else
      c->num_seqs = count;
    return 0;
  }
  if (!strcmp(name, "force")) return (c->force = nsai_variant_find(value)) ? 0 : -1;
  if (!strcmp(name, "scale")) return parse_scale(value, &c->softmax_scale);
  int status = parse_ranking(name, value, &c->model);
  if (status > 0) status = parse_word(name, value, c);
  return status > 0 ? parse_count(name, value, c) : status;
}

/* A field without "=": a type, a flag or a letter with numbers. Returns 0, or -1. */
static int parse_bare(const char *field, nsai_verify_case *c) {
  nsai_model *g = &c->model;
  static const struct {
    const char *name;
    size_t offset;
  } flags[] = { { "overlap", offsetof(nsai_verify_case, overlap) },
                { "nobatch", offsetof(nsai_verify_case, no_batch) },
                { "gemm", offsetof(nsai_verify_case, gemm) },
                { "lists", offsetof(nsai_verify_case, lists) },
                { "ilse", offsetof(nsai_verify_case, index_lse) },
                { "f32grads", offsetof(nsai_verify_case, grads_f32) },
                { "f32dout", offsetof(nsai_verify_case, d_o_f32) },
                { "accumulate", offsetof(nsai_verify_case, accumulate) },
                { "saved", offsetof(nsai_verify_case, saved) },
                { "mma", offsetof(nsai_verify_case, mma) } };
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
    if (!strcmp(field, flags[i].name)) {
      *(int32_t *)((char *)c + flags[i].offset) = 1;
      return 0;
    }
  if (!strcmp(field, "bf16") || !strcmp(field, "f16")) {
    g->dtype = field[0] == 'b' ? NSA_BF16 : NSA_F16;
    return 0;
  }
  int32_t *const heads[] = { &g->heads, &g->kv_heads }, *const window[] = { &g->window };
  int32_t *const dims[] = { &g->head_dim_qk, &g->head_dim_v };
  int32_t *const blocks[] = { &g->block, &g->stride };
  int32_t *const select[] = { &g->select_block, &g->select_count, &g->select_init,
                              &g->select_local };
  switch (field[0]) {
  case 'h': return parse_form(field, "h#/#", heads);
  case 'd': return parse_form(field, "d#/#", dims);
  case 'l': return parse_form(field, "l#/#", blocks);
  case 's': return parse_form(field, "s#x#+#+#", select);
  case 'w': return parse_form(field, "w#", window);
  default: return -1;
  }
}

/* Checks that the fields fit together. NULL when they do. */
static const char *inconsistent(const nsai_verify_case *c, int q_count, int kv_count) {
  const nsai_model *g = &c->model;
  if (q_count != kv_count) return "q and kv need one length per sequence each";
  if (g->kv_heads < 1 || g->heads < g->kv_heads || g->heads % g->kv_heads)
    return "KV heads must divide heads";
  if (g->stride < 1 || g->block % g->stride || g->select_block < 1 || g->select_block % g->stride)
    return "the stride must divide both block sizes";
  if (g->norm_block && (g->norm_stride < 1 || g->norm_block % g->norm_stride ||
                        g->phi == NSAI_PHI_EXTERNAL || !g->select_count))
    return "norm needs a stride that divides its block, selected blocks, and no phi=external";
  if (g->keys_only && (g->per_branch || !g->select_count))
    return "cmp=keys needs kv=shared and selected blocks";
  if ((g->by == NSAI_BY_INDEX) != (g->phi == NSAI_PHI_NONE) ||
      (g->by == NSAI_BY_INDEX &&
       (!g->select_count || g->keys_only || g->norm_block || g->pool != NSAI_POOL_MAX ||
        g->index_dim < NSAI_MIN_HEAD_DIM || g->index_dim > NSAI_MAX_HEAD_DIM ||
        g->index_dim % NSAI_HEAD_DIM_STEP)))
    return "index needs 16 to 256 numbers in steps of 8, selected blocks, phi=none and pool=max";
  if (c->kind == NSAI_VERIFY_COMPRESS && !nsai_phi_runs(g))
    return "compress needs a phi that makes compressed keys";
  if (c->kind == NSAI_VERIFY_ZERO_GATE && !nsai_gate_is_given(g))
    return "zero_gate needs gate=weights or gate=logits";
  if (c->no_batch && c->num_seqs != 1) return "nobatch means one sequence";
  if (c->layout == NSAI_VERIFY_LAYOUT_PACKED &&
      (g->per_branch ||
       nsai_verify_total(c->q_len, c->num_seqs) != nsai_verify_total(c->kv_len, c->num_seqs)))
    return "layout=packed needs kv=shared and as many query as KV tokens";
  return NULL;
}

int nsai_verify_case_parse(const char *text, nsai_verify_case *c, char *error, size_t size) {
  char copy[NSAI_VERIFY_CASE_TEXT], *save = NULL;
  int q_count = 0, first = 1;
  nsai_verify_case_init(c);
  c->num_seqs = 0;
  if (strlen(text) >= sizeof copy) return snprintf(error, size, "the problem is too long"), -1;
  strcpy(copy, text);
  for (char *field = strtok_r(copy, ":", &save); field; field = strtok_r(NULL, ":", &save)) {
    int status = -1;
    char *equals = strchr(field, '=');
    if (first) {
      int kind = find_name(field, kind_names, NSAI_VERIFY_KINDS);
      c->kind = (nsai_verify_kind)kind;
      status = kind < 0 ? -1 : 0;
      first = 0;
    } else if (equals) {
      *equals = 0;
      status = parse_named(field, equals + 1, c, &q_count);
      *equals = '=';
    } else {
      status = parse_bare(field, c);
    }
    if (status) {
      snprintf(error, size, "cannot read '%s'; autotune/verify/case.h describes the fields", field);
      return -1;
    }
  }
  int kv_count = c->num_seqs;
  if (!q_count && !kv_count) q_count = kv_count = 1; /* the sequence of nsai_verify_case_init */
  if (!kv_count) memcpy(c->kv_len, c->q_len, sizeof c->q_len), kv_count = q_count;
  if (!q_count) memcpy(c->q_len, c->kv_len, sizeof c->q_len), q_count = kv_count;
  c->num_seqs = kv_count;
  if (c->model.by == NSAI_BY_INDEX) c->model.index_heads = c->model.kv_heads;
  const char *problem = first ? "the problem is empty" : inconsistent(c, q_count, kv_count);
  if (problem) snprintf(error, size, "%s", problem);
  return problem ? -1 : 0;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_lengths(FILE *out, const char *name, const int64_t *len, int32_t count) {
  fprintf(out, ":%s=", name);
  for (int32_t i = 0; i < count; i++) fprintf(out, "%s%lld", i ? "," : "", (long long)len[i]);
}

static void print_options(FILE *out, const nsai_verify_case *c) {
  const nsai_model *g = &c->model;
  fprintf(out, ":phi=%s", phi_names[g->phi]);
  if (g->phi == NSAI_PHI_MLP) fprintf(out, ".%d.%s", g->phi_hidden, act_names[g->phi_activation]);
  fprintf(out, ":gate=%s", gate_names[g->gate]);
  if (g->gate == NSAI_GATE_MLP)
    fprintf(out, ".%d.%d.%s", g->gate_channels, g->gate_hidden, act_names[g->gate_activation]);
  else if (c->gate_f32)
    fprintf(out, ".f32");
  fprintf(out, ":kv=%s", g->per_branch ? "branches" : "shared");
  fprintf(out, ":sel=%s%s", select_names[c->selection - NSA_SELECT_TOPN],
          c->index_shared ? ".shared" : "");
  if (g->keys_only) fprintf(out, ":cmp=keys");
  if (g->pool == NSAI_POOL_MAX) fprintf(out, ":pool=max");
  if (g->norm_block) fprintf(out, ":norm=%d/%d", g->norm_block, g->norm_stride);
  if (g->by == NSAI_BY_INDEX) fprintf(out, ":index=%d", g->index_dim);
}

void nsai_verify_case_print(const nsai_verify_case *c, char *text, size_t size) {
  const nsai_model *g = &c->model;
  FILE *out = fmemopen(text, size, "w");
  if (!out) {
    snprintf(text, size, "(out of memory)");
    return;
  }
  fprintf(out, "%s:%s:h%d/%d:d%d/%d:l%d/%d:s%dx%d+%d+%d:w%d", kind_names[c->kind],
          g->dtype == NSA_F16 ? "f16" : "bf16", g->heads, g->kv_heads, g->head_dim_qk,
          g->head_dim_v, g->block, g->stride, g->select_block, g->select_count, g->select_init,
          g->select_local, g->window);
  print_options(out, c);
  print_lengths(out, "q", c->q_len, c->num_seqs);
  print_lengths(out, "kv", c->kv_len, c->num_seqs);
  fprintf(out, ":seed=%llu:fill=%s:layout=%s", (unsigned long long)c->seed, fill_names[c->fill],
          layout_names[c->layout]);
  if (c->slack) fprintf(out, ":slack=%lld", (long long)c->slack);
  if (c->branches) fprintf(out, ":branches=%u", c->branches);
  if (c->softmax_scale != 0) fprintf(out, ":scale=%.9g", (double)c->softmax_scale);
  if (c->overlap) fprintf(out, ":overlap");
  if (c->index_lse) fprintf(out, ":ilse");
  if (c->no_batch) fprintf(out, ":nobatch");
  if (c->gemm) fprintf(out, ":gemm");
  if (c->lists) fprintf(out, ":lists");
  if (c->grads_f32) fprintf(out, ":f32grads");
  if (c->d_o_f32) fprintf(out, ":f32dout");
  if (c->accumulate) fprintf(out, ":accumulate");
  if (c->saved) fprintf(out, ":saved");
  if (c->recompute) fprintf(out, ":recompute=%s", recompute_names[c->recompute]);
  if (c->mma) fprintf(out, ":mma");
  if (c->wanted) fprintf(out, ":wanted=%u", c->wanted);
  if (c->again) fprintf(out, ":again=%d", c->again);
  if (c->force) fprintf(out, ":force=%s", c->force->name);
  fclose(out);
}
