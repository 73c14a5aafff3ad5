/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The report as Markdown for people and as JSON for programs.
 */
#include "cli/cmd_report_impl.h"

#include "base/json.h"

#include <inttypes.h>
#include <string.h>

static const char *const outcome_names[] = {
  [PASS] = "pass", [FAIL] = "fail", [SKIPPED] = "skipped"
};

/* An argument relative to the report's folder: a report may be read on another machine. */
static const char *seen_from_folder(const report *r, const char *argument) {
  const char *folder = r->a->folder ? r->a->folder : ".";
  size_t length = strlen(folder);
  if (strncmp(argument, folder, length) != 0) return argument;
  if (!argument[length]) return ".";
  return argument[length] == '/' ? argument + length + 1 : argument;
}

static void write_command(nsai_writer *out, const report *r, const nsai_child *program) {
  for (int i = 0; program->arguments[i]; i++)
    nsai_write(out, "%s%s", i ? " " : "", seen_from_folder(r, program->arguments[i]));
}

nsa_status nsai_report_write_markdown(const void *subject, nsai_writer *out) {
  const report *r = subject;
  nsai_write(out,
             "# %s\n\nlibnsa %d.%d.%d, %s, %.1f s.\n\n| criterion | result | |\n|---|---|---|\n",
             r->a->file, NSA_VERSION_MAJOR, NSA_VERSION_MINOR, NSA_VERSION_PATCH, r->date,
             r->seconds);
  for (int i = 0; i < r->criterion_count; i++)
    nsai_write(out, "| %s | %s | %s |\n", r->criteria[i].name,
               outcome_names[r->criteria[i].outcome], r->criteria[i].note);
  nsai_write(out, "\n## Environment\n\n```\n%s```\n\n## Configuration\n\n```yaml\n%s```\n\n",
             r->environment, r->configuration);
  nsai_write(out, "## Choices\n\n");
  if (r->records) nsai_write(out, "Records of %s", r->record_device);
  if (r->elsewhere) nsai_write(out, "; %" PRId64 " more of other devices", r->elsewhere);
  nsai_write(out, "%s", r->records ? ".\n\n" : "No records.\n\n");
  nsai_tune_print_problems(out, NSAI_TUNE_MARKDOWN, &r->results);
  nsai_write(out, "## Sparse against dense\n\n");
  NSAI_TRY(nsai_tune_print_summary(out, NSAI_TUNE_MARKDOWN, &r->results));
  nsai_write(out, "## Checks and benchmarks\n\n| what | command | result | status | seconds |\n"
                  "|---|---|---|---:|---:|\n");
  for (int i = 0; i < TOOLS; i++) {
    nsai_write(out, "| %s | `", r->tools[i].title);
    write_command(out, r, &r->tools[i]);
    nsai_write(out, "` | %s | ", outcome_names[nsai_report_outcome(r, &r->tools[i])]);
    if (r->tools[i].path[0])
      nsai_write(out, "%d | %.1f |\n", r->tools[i].exit_status, r->tools[i].seconds);
    else
      nsai_write(out, "- | - |\n");
  }
  return NSA_OK;
}

static void write_child_json(nsai_writer *out, const report *r, const nsai_child *program) {
  nsai_write_json_member(out, "{", "title", program->title);
  nsai_write(out, ", \"command\": [");
  for (int i = 0; program->arguments[i]; i++) {
    nsai_write(out, "%s", i ? ", " : "");
    nsai_write_json(out, seen_from_folder(r, program->arguments[i]));
  }
  nsai_write_json_member(out, "], ", "path", program->path[0] ? program->path : NULL);
  nsai_write_json_member(out, ", ", "result", outcome_names[nsai_report_outcome(r, program)]);
  nsai_write(out, ", \"status\": %d, \"seconds\": %.3f,\n   \"output\": ", program->exit_status,
             program->seconds);
  /* In pieces, since the length of a formatted text is limited to an int. */
  nsai_write_bytes(out, program->output ? program->output : "null",
                   program->output ? strlen(program->output) : 4);
  nsai_write(out, "}");
}

nsa_status nsai_report_write_json(const void *subject, nsai_writer *out) {
  const report *r = subject;
  nsai_write_json_member(out, "{", "file", r->a->file);
  nsai_write_json_member(out, ", ", "date", r->date);
  nsai_write(out, ", \"seconds\": %.3f,\n \"build\": %s,\n \"criteria\": [", r->seconds,
             nsa_build_info());
  for (int i = 0; i < r->criterion_count; i++) {
    nsai_write_json_member(out, i ? ",\n  {" : "\n  {", "criterion", r->criteria[i].name);
    nsai_write_json_member(out, ", ", "result", outcome_names[r->criteria[i].outcome]);
    nsai_write_json_member(out, ", ", "note", r->criteria[i].note);
    nsai_write(out, "}");
  }
  nsai_write(out, "],\n \"environment\": ");
  nsai_write_bytes(out, r->environment_json, strlen(r->environment_json));
  nsai_write_json_member(out, ",\n ", "configuration", r->configuration);
  nsai_write_json_member(out, ",\n ", "device", r->record_device[0] ? r->record_device : NULL);
  nsai_write(out, ", \"records\": %" PRId64 ", \"records_elsewhere\": %" PRId64, r->records,
             r->elsewhere);
  nsai_write(out, ",\n \"choices\": ");
  nsai_tune_print_problems(out, NSAI_TUNE_JSON, &r->results);
  nsai_write(out, ",\n \"sparse_against_dense\": ");
  NSAI_TRY(nsai_tune_print_summary(out, NSAI_TUNE_JSON, &r->results));
  nsai_write(out, ",\n \"runs\": [");
  for (int i = 0; i < TOOLS; i++) {
    nsai_write(out, "%s\n  ", i ? "," : "");
    write_child_json(out, r, &r->tools[i]);
  }
  nsai_write(out, "]}\n");
  return NSA_OK;
}
