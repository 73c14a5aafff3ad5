/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune: inspects machine, configurations and kernel cache, compiles ahead of time, and
 * tunes. One table of subcommands; each has its own file cmd_*.c and its own --help.
 */
#include "cli/cli.h"

#include "base/text.h"
#include "cli/complete.h"
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct command {
  const char *name, *help;
  nsai_command_fn run;
} command;

static const command commands[] = {
  { "doctor", "What this machine has, where it was looked for, what would be used",
    nsai_cmd_doctor },
  { "quickstart", "Compile, run and time a forward on this machine", nsai_cmd_quickstart },
  { "init", "Write a commented configuration, from a model's config.json too", nsai_cmd_init },
  { "check", "Check configuration files", nsai_cmd_check },
  { "config", "Print the effective configuration and where it came from", nsai_cmd_config },
  { "show", "Show variants, environment, architectures, or how a file would be served",
    nsai_cmd_show },
  { "compile", "Compile the kernels of configuration files into the cache, without a GPU too",
    nsai_cmd_compile },
  { "tune", "Verify and time the candidates of every stage on this GPU, keep the winners",
    nsai_cmd_tune },
  { "report", "Write a report: environment, choices, sparse against dense, checks",
    nsai_cmd_report },
  { "list", "List the kernel cache, or the tuning records", nsai_cmd_list },
  { "verify", "Verify kernel cache and tuning records, remove bad kernels", nsai_cmd_verify },
  { "gc", "Shrink the kernel cache", nsai_cmd_gc },
  { "export", "Write the kernel cache, or the tuning records, into one file", nsai_cmd_export },
  { "import", "Add such a file", nsai_cmd_import },
  { "keygen", "Make a key pair that signs such files", nsai_cmd_keygen },
};
#define COMMANDS (sizeof commands / sizeof commands[0])

static const char exit_codes[] =
    "Exit status: 0 ok, 1 failure, 2 usage, 3 configuration, 4 no usable GPU, 5 compiler,\n"
    "6 cache, 7 verification, 130 interrupted (what was finished is kept).\n";

static void print_help(FILE *out) {
  fputs("Usage: nsa-autotune COMMAND [OPTION...]\n\n", out);
  for (size_t i = 0; i < COMMANDS; i++)
    fprintf(out, "  %-12s%s\n", commands[i].name, commands[i].help);
  fprintf(
      out,
      "\n`nsa-autotune COMMAND --help` says more; `nsa-autotune --version` names the build.\n%s",
      exit_codes);
}

static int run_command(const command *c, int argc, char **argv) {
  char name[64];
  snprintf(name, sizeof name, "nsa-autotune %s", c->name);
  argv[0] = name;
  return c->run(argc, argv);
}

static int refuse_command(const char *word) {
  const char *nearest = NULL;
  uint32_t least = UINT32_MAX;
  for (size_t i = 0; i < COMMANDS; i++)
    if (nsai_is_nearer(word, commands[i].name, &least)) nearest = commands[i].name;
  if (*word == '-')
    nsai_cli_error("unknown option \"%s\": options follow a command, as in `nsa-autotune check "
                   "--json FILE`; --help and --version stand alone",
                   word);
  else if (nearest)
    nsai_cli_error("unknown command \"%s\"; did you mean \"%s\"?", word, nearest);
  else
    nsai_cli_error("unknown command \"%s\"; `nsa-autotune --help` lists them", word);
  return NSAI_EXIT_USAGE;
}

/* Candidates for the last of the words behind "nsa-autotune complete". */
static int complete(int argc, char **argv) {
  const char *first = argc > 1 ? argv[1] : "";
  for (size_t i = 0; i < COMMANDS; i++) {
    if (argc <= 2) {
      nsai_complete_offer(first, commands[i].name, commands[i].help);
    } else if (!strcmp(first, commands[i].name)) {
      nsai_complete_begin(argv + 2, argc - 2);
      return run_command(&commands[i], argc - 1, argv + 1);
    }
  }
  if (argc <= 2) {
    nsai_complete_offer(first, "--help", "Describe the commands");
    nsai_complete_offer(first, "--version", "Print the build information");
  }
  return NSAI_EXIT_OK;
}

int main(int argc, char **argv) {
  nsai_program_begin("nsa-autotune");
  argp_err_exit_status = NSAI_EXIT_USAGE;
  if (argc < 2) {
    print_help(stderr);
    return NSAI_EXIT_USAGE;
  }
  const char *word = argv[1];
  if (!strcmp(word, "--help") || !strcmp(word, "-?") || !strcmp(word, "help")) {
    print_help(stdout);
    return NSAI_EXIT_OK;
  }
  if (!strcmp(word, "--version") || !strcmp(word, "-V")) {
    printf("%s\n", nsa_build_info()); /* as argp does behind a command */
    return NSAI_EXIT_OK;
  }
  if (!strcmp(word, "complete")) return complete(argc - 1, argv + 1);
  for (size_t i = 0; i < COMMANDS; i++)
    if (!strcmp(word, commands[i].name)) return run_command(&commands[i], argc - 1, argv + 1);
  return refuse_command(word);
}
