/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune show: the tables of the library, and the variants chosen for a file.
 */
#include "cli/cli.h"
#include "plan/parts.h"

#include "base/json.h"
#include "config/env.h"
#include "config/value.h"
#include "plan/context.h"
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
  nsai_cli_settings settings;
  const char *what; /* a table's name, "device" or a file */
  const char *file; /* of "device"; NULL: none */
  const char *arch; /* NULL: the GPU's */
  int32_t op;       /* NSA_OP_*; 0: forward and dense */
  bool json;
} arguments;

static const struct argp_option options[] = {
  { "json", 'j', 0, 0, "Print JSON", 0 },
  { "arch", 'a', "ARCH", 0, "Show FILE or device for this architecture, without a GPU", 0 },
  { "op", 'o', "OP", 0,
    "Operation of FILE: forward, dense, prefill, decode, append, backward or index_kl; without it "
    "the first "
    "two",
    0 },
  { 0 }
};

static error_t parse(int key, char *value, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
  case 'j': a->json = true; break;
  case 'a':
    a->arch = value;
    nsai_cli_override(&a->settings, NSAI_CLI_NO_DEVICE, state);
    break;
  case 'o': a->op = NSA_OP_FORWARD + nsai_program_word("--op", value, nsai_cli_ops, state); break;
  case ARGP_KEY_ARG:
    if (!state->arg_num)
      a->what = value;
    else if (state->arg_num == 1 && !strcmp(a->what, "device"))
      a->file = value;
    else
      argp_error(state, "one thing to show only");
    break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

/* ---- tables ---- */

/* The tile sizes from which the tuner may choose, one line each. */
static void write_space(nsai_writer *out, const nsai_space *space) {
  for (int i = 0; space && i < space->count; i++) {
    const nsai_range *r = &space->range[i];
    nsai_write(out, "%-18s   %-7s", "", nsai_tile_name(r->tile));
    for (int k = 0; k < NSAI_MAX_RANGE && r->values[k]; k++)
      nsai_write(out, "%s%d", k ? ", " : " ", r->values[k]);
    nsai_write(out, ": %s\n", r->why);
  }
}

/* The same as a JSON member. */
static void write_space_json(nsai_writer *out, const nsai_space *space) {
  nsai_write(out, ", \"tiles\": [");
  for (int i = 0; space && i < space->count; i++) {
    const nsai_range *r = &space->range[i];
    nsai_write_json_member(out, i ? ", {" : "{", "name", nsai_tile_name(r->tile));
    nsai_write(out, ", \"values\": [");
    for (int k = 0; k < NSAI_MAX_RANGE && r->values[k]; k++)
      nsai_write(out, "%s%d", k ? ", " : "", r->values[k]);
    nsai_write_json_member(out, "], ", "why", r->why);
    nsai_write(out, "}");
  }
  nsai_write(out, "]");
}

/* The further stages that a variant fuses. */
static void write_fuses(nsai_writer *out, uint32_t fuses) {
  if (!fuses) return;
  nsai_write(out, "%-18s   fuses", "");
  for (int s = 0; s < NSAI_STAGE_COUNT; s++)
    if (fuses >> s & 1) nsai_write(out, " %s", nsai_stage_name((nsai_stage)s));
  nsai_write(out, "\n");
}

/* The same as a JSON member. */
static void write_fuses_json(nsai_writer *out, uint32_t fuses) {
  const char *comma = "";
  nsai_write(out, ", \"fuses\": [");
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    if (!(fuses >> s & 1)) continue;
    nsai_write(out, "%s\"%s\"", comma, nsai_stage_name((nsai_stage)s));
    comma = ", ";
  }
  nsai_write(out, "]");
}

static void write_variants(nsai_writer *out, bool json) {
  for (const nsai_variant *const *row = nsai_library_parts.variants; *row; row++) {
    const nsai_variant *v = *row;
    if (!json) {
      nsai_write(out, "%-18s %-34s %s\n", nsai_stage_name(v->stage), v->name, v->why);
      write_fuses(out, v->fuses);
      write_space(out, v->space);
      continue;
    }
    nsai_write_json_member(out, row > nsai_library_parts.variants ? ",\n {" : "[{", "stage",
                           nsai_stage_name(v->stage));
    nsai_write_json_member(out, ", ", "name", v->name);
    nsai_write_json_member(out, ", ", "why", v->why);
    write_fuses_json(out, v->fuses);
    write_space_json(out, v->space);
    nsai_write(out, "}");
  }
  if (json) nsai_write(out, "]\n");
}

static void write_archs(nsai_writer *out, bool json) {
  for (int32_t i = 0; nsai_arch_at(i); i++) {
    const nsai_arch *arch = nsai_arch_at(i);
    if (json)
      nsai_write(out,
                 "%s{\"name\": \"%s\", \"compute_capability\": \"%d.%d\", \"shared_bytes\": %d}",
                 i ? ",\n " : "[", arch->name, arch->major, arch->minor, arch->shared_bytes);
    else
      nsai_write(out, "%-8s compute capability %d.%d, %d KiB of shared memory a block\n",
                 arch->name, arch->major, arch->minor, arch->shared_bytes / 1024);
  }
  if (json) nsai_write(out, "]\n");
}

static void write_env_var(nsai_writer *out, const nsai_env_var *var, bool json, bool first) {
  const nsai_key *key = &nsai_keys[var->key];
  char type[256];
  nsai_writer t = nsai_writer_open(type, sizeof type);
  nsai_type_write(key, &t);
  if (!json) {
    nsai_write(out, "%-18s %-22s %s\n%-18s %s; built-in: %s\n", var->name, key->path, key->help, "",
               type, key->fallback);
    return;
  }
  nsai_write_json_member(out, first ? "[{" : ",\n {", "name", var->name);
  nsai_write_json_member(out, ", ", "key", key->path);
  nsai_write_json_member(out, ", ", "type", type);
  nsai_write_json_member(out, ", ", "default", key->fallback);
  nsai_write_json_member(out, ", ", "help", key->help);
  nsai_write(out, "}");
}

static void write_env(nsai_writer *out, bool json) {
  const nsai_env_var *var = NULL;
  for (size_t i = 0; (var = nsai_env_at(i)); i++) write_env_var(out, var, json, !i);
  if (json) nsai_write(out, "]\n");
}

/* The environment variable that sets a key; NULL: none. */
static const char *variable_of(nsai_key_id key) {
  const nsai_env_var *var = NULL;
  for (size_t i = 0; (var = nsai_env_at(i)); i++)
    if (var->key == key) return var->name;
  return NULL;
}

static void write_key(nsai_writer *out, nsai_key_id id, bool json) {
  const nsai_key *key = &nsai_keys[id];
  const char *variable = variable_of(id), *fallback = key->fallback ? key->fallback : "";
  char type[256];
  nsai_writer t = nsai_writer_open(type, sizeof type);
  nsai_type_write(key, &t);
  if (!json) {
    nsai_write(out, "%-32s %s\n%-32s %s; ", key->path, key->help, "", type);
    nsai_write(out, key->fallback ? "built-in: %s" : "must be given%s", fallback);
    nsai_write(out, variable ? "; %s\n" : "%s\n", variable ? variable : "");
    return;
  }
  nsai_write_json_member(out, id ? ",\n {" : "[{", "name", key->path);
  nsai_write_json_member(out, ", ", "type", type);
  if (key->fallback) nsai_write_json_member(out, ", ", "default", fallback);
  if (variable) nsai_write_json_member(out, ", ", "variable", variable);
  nsai_write_json_member(out, ", ", "help", key->help);
  nsai_write(out, "}");
}

static void write_keys(nsai_writer *out, bool json) {
  for (int id = 0; id < NSAI_KEY_COUNT; id++) write_key(out, (nsai_key_id)id, json);
  if (json) nsai_write(out, "]\n");
}

/* ---- a file ---- */

typedef struct explain_subject {
  nsa_ctx *ctx;
  nsa_problem problem;
} explain_subject;

static nsa_status explain(const void *subject, nsai_writer *out) {
  const explain_subject *s = subject;
  out->used = nsa_explain(s->ctx, &s->problem, out->buf, out->size);
  return NSA_OK;
}

/* What the `serving` section does not give is what compile takes in its place. */
static nsa_problem problem_of(const nsai_config *config, int32_t op) {
  nsa_problem p = NSA_PROBLEM_INIT;
  bool cached = op == NSA_OP_PREFILL || op == NSA_OP_DECODE || op == NSA_OP_APPEND;
  int64_t tokens = config->serving.max_tokens, kv_len = config->serving.max_kv_len;
  p.op = op;
  if (!tokens && op != NSA_OP_DECODE) /* those of a step follow from its sequences */
    p.max_tokens = kv_len ? kv_len : NSAI_CLI_TOKENS;
  if (!kv_len && cached) p.max_kv_len = tokens ? tokens : NSAI_CLI_TOKENS;
  return p;
}

/* `comma`: text before its JSON object. */
static nsa_status write_problem(nsa_ctx *ctx, int32_t op, bool json, const char *comma,
                                nsai_writer *out) {
  explain_subject subject = { ctx, problem_of(ctx->config, op) };
  nsa_caps caps = NSA_CAPS_INIT;
  char name[1024], *text;
  NSAI_TRY(nsa_query(ctx, &subject.problem, &caps));
  NSAI_TRY(nsai_cli_text(explain, &subject, &text));
  if (json) {
    nsa_problem_string(ctx, &subject.problem, name, sizeof name);
    nsai_write_json_member(out, comma, "problem", name);
    nsai_write_json_member(out, ", ", "variants", caps.variants);
    nsai_write_json_member(out, ", ", "explanation", text);
    nsai_write(out, ", \"supported\": %s, \"workspace_bytes\": %llu, \"missing_kernels\": %d}",
               caps.supported ? "true" : "false", (unsigned long long)caps.workspace_bytes,
               caps.missing_kernels);
  } else {
    nsai_write(out, "%s", text);
    if (caps.missing_kernels)
      nsai_write(out, "  %d kernel%s in no cache and would be compiled\n", caps.missing_kernels,
                 caps.missing_kernels == 1 ? " is" : "s are");
  }
  free(text);
  return NSA_OK;
}

static nsa_status write_file(nsa_ctx *ctx, int32_t op, bool json, nsai_writer *out) {
  NSAI_TRY(write_problem(ctx, op ? op : NSA_OP_FORWARD, json, "[{", out));
  if (!op) NSAI_TRY(write_problem(ctx, NSA_OP_DENSE, json, ",\n {", out));
  if (json) nsai_write(out, "]\n");
  return NSA_OK;
}

/* ---- the command ---- */

typedef struct subject {
  const arguments *a;
  nsa_ctx *ctx; /* NULL: only tables are shown */
} subject;

static nsa_status write_subject(const void *user, nsai_writer *out) {
  const subject *s = user;
  const char *what = s->a->what;
  if (s->ctx) return write_file(s->ctx, s->a->op, s->a->json, out);
  if (!strcmp(what, "env"))
    write_env(out, s->a->json);
  else if (!strcmp(what, "keys"))
    write_keys(out, s->a->json);
  else if (!strcmp(what, "arch"))
    write_archs(out, s->a->json);
  else
    write_variants(out, s->a->json);
  return NSA_OK;
}

static bool is_table(const char *what) {
  return !strcmp(what, "variants") || !strcmp(what, "keys") || !strcmp(what, "env") ||
         !strcmp(what, "arch");
}

static nsa_status open_file(const arguments *a, nsa_ctx **ctx) {
  nsa_options o = NSA_OPTIONS_INIT;
  o.overrides = a->settings.overrides;
  o.arch = a->arch;
  return nsai_cli_create(a->what, &o, ctx);
}

static nsa_status show(const arguments *a) {
  subject s = { .a = a };
  if (!is_table(a->what)) NSAI_TRY(open_file(a, &s.ctx));
  nsa_status status = nsai_cli_print(write_subject, &s);
  nsa_destroy(s.ctx);
  return status;
}

int nsai_cmd_show(int argc, char **argv) {
  static const char help[] =
      "Shows the variant table with what each variant is good for, the keys of the configuration, "
      "the environment variables, the architectures; the limits and speeds of the device, and "
      "where they come from; or, for a configuration FILE, which variants would serve its forward "
      "and its dense attention, and every reason against the others.";
  arguments a = { .what = "variants" };
  nsa_status status;
  nsai_cli_parse(argc, argv, options, parse, "[variants|keys|env|arch|device [FILE]|FILE]", help,
                 &a);
  if (!strcmp(a.what, "device"))
    status = nsai_show_device(a.file, a.arch, &a.settings, a.json);
  else
    status = show(&a);
  int code = nsai_cli_exit(status);
  if (code == NSAI_EXIT_NO_GPU)
    fprintf(stderr, "Without a GPU, name an architecture with --arch: %s.\n", nsai_arch_names());
  return code;
}
