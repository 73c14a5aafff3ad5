/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Lock rule: `lock` protects `nvrtc` and `compiler_id`; everything else is constant after
 * create. NVRTC itself is thread-safe with one program per thread, and runs in parallel from
 * version 12 on.
 *
 * The reason for each option:
 *   --gpu-architecture=sm_XY   a cubin, never PTX: no second compiler in the driver at load time
 *   --std=c++17                `if constexpr` instead of preprocessor switches
 *   --no-cache                 NVRTC 12.9 and later have a disk cache of their own, for which they
 *                              load the driver and call cuInit; this library's cache does neither
 *   --no-source-include        otherwise the host's working directory is searched for headers
 *   --modify-stack-limit=false otherwise the process's stack limit is raised
 *   --minimal                  leaves out textures and the device runtime: shorter compile time
 *   --ptxas-options=-v         registers, spills and remarks in the log
 *   -lineinfo                  on request only
 */
#include "compile/compiler.h"

#include "base/duration.h"
#include "compile/dump.h"
#include "compile/ptxas_log.h"
#include "compile/sass_check.h"
#include "driver/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX 10

/* The name of the generated unit in messages. It is constant because the cubin may contain it. */
static const char unit_name[] = "nsa_unit.cu";

/* `since`: the first NVRTC with the option, 100 * major + minor. An older one would refuse to
 * compile, so it does not get the option. Older ones have no cache that --no-cache would
 * disable; --minimal only saves time. */
static const struct {
  const char *text;
  int32_t since;
} fixed_options[] = {
  { "--std=c++17", 0 },         { "--no-cache", 1209 },
  { "--no-source-include", 0 }, { "--modify-stack-limit=false", 0 },
  { "--minimal", 1204 },        { "--ptxas-options=-v", 0 },
};

struct nsai_compiler {
  char *nvrtc_path, *dump_dir; /* NULL: none */
  int32_t driver_version;      /* 0: no limit */
  nsai_logger *logger;
  nsai_templates templates;
  const char **header_names, **header_texts; /* the templates, in the form that NVRTC takes */
  pthread_mutex_t lock;
  const nsai_nvrtc *nvrtc; /* NULL: not opened yet */
  bool located;            /* compiler_id holds the result of a search */
  char compiler_id[NSAI_COMPILER_ID_CHARS];
};

/* ---- create, destroy ---- */

static nsa_status copy_string(char **out, const char *text) {
  *out = NULL;
  if (!text || !text[0]) return NSA_OK;
  *out = strdup(text);
  return *out ? NSA_OK : nsai_fail_nomem("a path", strlen(text) + 1);
}

static nsa_status list_headers(nsai_compiler *compiler) {
  size_t count = compiler->templates.count, bytes = (count + 1) * sizeof(char *);
  compiler->header_names = malloc(bytes);
  compiler->header_texts = malloc(bytes);
  if (!compiler->header_names || !compiler->header_texts)
    return nsai_fail_nomem("the list of templates", bytes);
  for (size_t i = 0; i < count; i++) {
    compiler->header_names[i] = compiler->templates.item[i].name;
    compiler->header_texts[i] = compiler->templates.item[i].text;
  }
  return NSA_OK;
}

nsa_status nsai_compiler_create(const nsai_compiler_options *options, nsai_compiler **out) {
  nsa_status status = NSA_OK;
  *out = NULL;
  nsai_compiler *compiler = calloc(1, sizeof *compiler);
  if (!compiler) return nsai_fail_nomem("the compiler's state", sizeof *compiler);
  pthread_mutex_init(&compiler->lock, NULL);
  compiler->logger = options->logger;
  compiler->driver_version = options->driver_version;
  NSAI_TRY_TO(fail, copy_string(&compiler->nvrtc_path, options->nvrtc_path));
  NSAI_TRY_TO(fail, copy_string(&compiler->dump_dir, options->dump_dir));
  NSAI_TRY_TO(fail, nsai_templates_init(&compiler->templates, options->templates_dir));
  NSAI_TRY_TO(fail, list_headers(compiler));
  *out = compiler;
  return NSA_OK;
fail:
  nsai_compiler_destroy(compiler);
  return status;
}

void nsai_compiler_destroy(nsai_compiler *compiler) {
  if (!compiler) return;
  nsai_templates_fini(&compiler->templates);
  free(compiler->header_names);
  free(compiler->header_texts);
  free(compiler->nvrtc_path);
  free(compiler->dump_dir);
  pthread_mutex_destroy(&compiler->lock);
  free(compiler);
}

/* ---- which compiler ---- */

/* The build-id. NVRTC 12 has none and is identified by a sample of its file. */
static void name_compiler(const nsai_library *library, char id[NSAI_COMPILER_ID_CHARS]) {
  char sample[NSAI_BUILD_ID_CHARS];
  if (library->build_id[0])
    snprintf(id, NSAI_COMPILER_ID_CHARS, "build-id:%s", library->build_id);
  else if (nsai_build_sample_of_file(library->path, sample))
    snprintf(id, NSAI_COMPILER_ID_CHARS, "sample:%s", sample);
}

/* Opens NVRTC and stores its id. Lock held. */
static nsa_status open_locked(nsai_compiler *compiler) {
  const nsai_nvrtc *nvrtc;
  const nsai_library_query query = { compiler->nvrtc_path, compiler->driver_version / 1000 };
  char id[NSAI_COMPILER_ID_CHARS] = "";
  NSAI_TRY(nsai_nvrtc_open(&query, compiler->logger, &nvrtc));
  /* The search excludes newer major versions; a path that was given is used as it is. */
  if (compiler->driver_version)
    NSAI_TRY(nsai_driver_check_major(compiler->driver_version, nvrtc->major));
  name_compiler(&nvrtc->library, id);
  if (compiler->located && strcmp(id, compiler->compiler_id) != 0)
    nsai_log(compiler->logger, NSA_LOG_INFO, "jit",
             "the search had found another NVRTC than the one that "
             "opens (%s); new kernels are cached under the latter",
             nvrtc->library.path);
  memcpy(compiler->compiler_id, id, sizeof id);
  compiler->located = true;
  compiler->nvrtc = nvrtc;
  nsai_log(compiler->logger, NSA_LOG_INFO, "jit", "NVRTC %d.%d at %s", (int)nvrtc->major,
           (int)nvrtc->minor, nvrtc->library.path);
  return NSA_OK;
}

static nsa_status open_compiler(nsai_compiler *compiler, const nsai_nvrtc **out) {
  pthread_mutex_lock(&compiler->lock);
  nsa_status status = compiler->nvrtc ? NSA_OK : open_locked(compiler);
  *out = compiler->nvrtc;
  pthread_mutex_unlock(&compiler->lock);
  return status;
}

/* Writes the id of the compiler that is open or would be opened; "" when there is none. */
static nsa_status locate_compiler(nsai_compiler *compiler, char id[NSAI_COMPILER_ID_CHARS]) {
  nsa_status status = NSA_OK;
  pthread_mutex_lock(&compiler->lock);
  if (!compiler->located) {
    nsai_library_query query = { compiler->nvrtc_path, compiler->driver_version / 1000 };
    struct {
      nsai_tried tried;
      nsai_library library;
    } *found = malloc(sizeof *found); /* 26 KB: too much for the stack of a small thread */
    if (!found) {
      status = nsai_fail_nomem("the search for NVRTC", sizeof *found);
    } else if (nsai_library_locate(&nsai_nvrtc_spec, &query, &found->tried, &found->library) ==
               NSA_OK) {
      name_compiler(&found->library, compiler->compiler_id);
    }
    free(found);
    compiler->located = status == NSA_OK;
  }
  memcpy(id, compiler->compiler_id, sizeof compiler->compiler_id);
  pthread_mutex_unlock(&compiler->lock);
  return status;
}

/* ---- options and keys ---- */

static void write_arch_option(const nsai_compile_request *request, char *text, size_t size) {
  snprintf(text, size, "--gpu-architecture=%s", request->arch);
}

const char *nsai_compiler_templates_digest(const nsai_compiler *compiler) {
  return compiler->templates.digest;
}

nsa_status nsai_compiler_key(nsai_compiler *compiler, const nsai_compile_request *request,
                             nsai_kernel_key *out) {
  char options[512], id[NSAI_COMPILER_ID_CHARS];
  write_arch_option(request, options, sizeof options);
  /* All options, whether or not this compiler knows them: its build-id determines which it gets. */
  size_t used = strlen(options);
  for (size_t i = 0; i < sizeof fixed_options / sizeof fixed_options[0]; i++)
    used += (size_t)snprintf(options + used, sizeof options - used, " %s", fixed_options[i].text);
  if (request->line_info) snprintf(options + used, sizeof options - used, " -lineinfo");
  NSAI_TRY(locate_compiler(compiler, id));
  const nsai_kernel_key_parts parts = {
    .entry = request->name,
    .source = request->source,
    .options = options,
    .arch = request->arch,
    .templates_digest = compiler->templates.digest,
    .compiler_id = id,
  };
  return nsai_kernel_key_init(out, &parts);
}

/* Refuses an architecture that this NVRTC does not know yet. NVRTC's own message only says
 * "invalid value for --gpu-architecture". */
static nsa_status check_arch(const nsai_nvrtc *nvrtc, const nsai_compile_request *request) {
  const nsai_arch *arch;
  NSAI_TRY(nsai_arch_demand(request->arch, &arch));
  int known[128], count = 0;
  NSAI_TRY(NSAI_NVRTC(nvrtc, nvrtcGetNumSupportedArchs(&count)));
  if (count > (int)(sizeof known / sizeof known[0]))
    return nsai_fail(NSA_E_INTERNAL, "NVRTC at %s lists %d architectures", nvrtc->library.path,
                     count);
  NSAI_TRY(NSAI_NVRTC(nvrtc, nvrtcGetSupportedArchs(known)));
  for (int i = 0; i < count; i++)
    if (known[i] == arch->major * 10 + arch->minor) return NSA_OK;
  return nsai_fail(NSA_E_UNSUPPORTED,
                   "NVRTC %d.%d at %s cannot compile for %s: install a newer one "
                   "and set `%s` or $%s.",
                   (int)nvrtc->major, (int)nvrtc->minor, nvrtc->library.path, arch->name,
                   nsai_nvrtc_spec.config_key, nsai_nvrtc_spec.env);
}

/* ---- one compilation ---- */

static nsa_status take_log(const nsai_nvrtc *nvrtc, nsai_nvrtc_program program, char **log) {
  size_t size = 0;
  NSAI_TRY(NSAI_NVRTC(nvrtc, nvrtcGetProgramLogSize(program, &size)));
  *log = calloc(1, size + 1);
  if (!*log) return nsai_fail_nomem("the compiler's log", size + 1);
  return NSAI_NVRTC(nvrtc, nvrtcGetProgramLog(program, *log));
}

static nsa_status take_cubin(const nsai_nvrtc *nvrtc, nsai_nvrtc_program program,
                             nsai_kernel_image *out) {
  NSAI_TRY(NSAI_NVRTC(nvrtc, nvrtcGetCUBINSize(program, &out->size)));
  out->cubin = malloc(out->size + 1);
  if (!out->cubin) return nsai_fail_nomem("a cubin", out->size + 1);
  return NSAI_NVRTC(nvrtc, nvrtcGetCUBIN(program, out->cubin));
}

/* The user need not change anything: plans try smaller tiles. */
static nsa_status fail_refused(const nsai_compile_request *request, const char *why) {
  return nsai_fail(NSA_E_COMPILE,
                   "kernel %s for %s is refused: %s; smaller tiles are "
                   "tried where there are any. Another NVRTC (`%s` or $%s) may do better.",
                   request->name, request->arch, why, nsai_nvrtc_spec.config_key,
                   nsai_nvrtc_spec.env);
}

/* The first NVRTC that knows every instruction of the kernels: st.async, in decode_cluster. */
#define KNOWS_ALL_SINCE_MAJOR 12
#define KNOWS_ALL_SINCE_MINOR 1

/* The remedy where the compiler is too old; else "". */
static void say_too_old(const nsai_nvrtc *nvrtc, char *text, size_t size) {
  text[0] = '\0';
  if (nvrtc->major > KNOWS_ALL_SINCE_MAJOR ||
      (nvrtc->major == KNOWS_ALL_SINCE_MAJOR && nvrtc->minor >= KNOWS_ALL_SINCE_MINOR))
    return;
  snprintf(text, size,
           "\nNVRTC %d.%d does not know all instructions of the kernels: set `%s` or $%s to NVRTC "
           "%d.%d or newer",
           (int)nvrtc->major, (int)nvrtc->minor, nsai_nvrtc_spec.config_key, nsai_nvrtc_spec.env,
           KNOWS_ALL_SINCE_MAJOR, KNOWS_ALL_SINCE_MINOR);
}

/* Puts the first errors into the error text, and the complete log and the numbered unit into the
 * log. A kernel that only lacks registers counts as refused, like one that spills. */
static nsa_status fail_compile(nsai_compiler *compiler, const nsai_nvrtc *nvrtc,
                               const nsai_compile_request *request, nsai_kernel_image *image) {
  char errors[4096], why[640], too_old[256];
  const char *log = image->log;
  nsai_ptxas_figures figures;
  nsai_ptxas_read_log(log, &figures);
  image->refused = figures.starved;
  if (image->refused) {
    nsai_log_lines(compiler->logger, NSA_LOG_TRACE, "jit", log);
    snprintf(why, sizeof why, "its threads have too few registers (%s)", figures.remark);
    return fail_refused(request, why);
  }
  nsai_compiler_first_errors(log, errors, sizeof errors);
  nsai_compiler_log_source(compiler->logger, request);
  nsai_log(compiler->logger, NSA_LOG_ERROR, "jit",
           "kernel %s for %s does not compile:", request->name, request->arch);
  nsai_log_lines(compiler->logger, NSA_LOG_ERROR, "jit", log);
  say_too_old(nvrtc, too_old, sizeof too_old);
  return nsai_fail(NSA_E_COMPILE, "kernel %s for %s does not compile:\n%s%s", request->name,
                   request->arch, errors, too_old);
}

/* The first NVRTC without the error that sass_check.h detects. */
#define KEEPS_REGISTERS_SINCE 1304

static int64_t find_lost_register(const nsai_nvrtc *nvrtc, const nsai_compile_request *request,
                                  const nsai_kernel_image *image) {
  if (100 * nvrtc->major + nvrtc->minor >= KEEPS_REGISTERS_SINCE ||
      nsai_arch_find(request->arch)->major < 9)
    return -1;
  return nsai_find_lost_register(image->cubin, image->size);
}

/* What is wrong with the image, as a clause; "" when nothing is. */
static void find_fault(const nsai_nvrtc *nvrtc, const nsai_kernel_image *image, int64_t lost,
                       const char *remark, char *why, size_t size) {
  why[0] = '\0';
  if (lost >= 0)
    snprintf(why, size,
             "NVRTC %d.%d lost the uniform register of its copy at 0x%llx (13.4 does not)",
             (int)nvrtc->major, (int)nvrtc->minor, (unsigned long long)lost);
  else if (image->spill_bytes)
    snprintf(why, size, "it spills %d bytes of registers (%d registers, %d bytes of stack)",
             (int)image->spill_bytes, (int)image->registers, (int)image->stack_bytes);
  else if (image->serial_wgmma)
    snprintf(why, size, "the assembler serialised its wgmma (%s)", remark);
}

/* Refuses a kernel whose machine code is wrong and, unless it is a last resort, one that spills
 * registers or whose wgmma instructions are serialised. */
static nsa_status check_image(nsai_compiler *compiler, const nsai_nvrtc *nvrtc,
                              const nsai_compile_request *request, nsai_kernel_image *image) {
  nsai_ptxas_figures figures;
  const int64_t lost = find_lost_register(nvrtc, request, image);
  nsai_ptxas_read_log(image->log, &figures);
  image->registers = figures.registers;
  image->spill_bytes = figures.spill_bytes;
  image->stack_bytes = figures.stack_bytes;
  image->shared_bytes = figures.shared_bytes;
  image->serial_wgmma = figures.serial_wgmma;
  nsai_log(compiler->logger, NSA_LOG_DEBUG, "jit",
           "%s %s: %.0f ms, %zu bytes, %d registers, %d bytes "
           "static shared memory",
           request->name, request->arch, image->compile_ms, image->size, (int)image->registers,
           (int)image->shared_bytes);
  nsai_log_lines(compiler->logger, NSA_LOG_TRACE, "jit", image->log);
  char why[640];
  find_fault(nvrtc, image, lost, figures.remark, why, sizeof why);
  image->refused = why[0] && (lost >= 0 || !request->last_resort);
  if (image->refused) return fail_refused(request, why);
  if (why[0])
    nsai_log(compiler->logger, NSA_LOG_WARN, "jit",
             "kernel %s for %s is a last resort: %s, and so do smaller tiles. Results are right, "
             "but it is slow. Another NVRTC (`%s` or $%s) may do better.",
             request->name, request->arch, why, nsai_nvrtc_spec.config_key, nsai_nvrtc_spec.env);
  return NSA_OK;
}

static nsai_nvrtc_result run_compiler(const nsai_nvrtc *nvrtc, nsai_nvrtc_program program,
                                      const nsai_compile_request *request, double *ms) {
  const char *options[OPTIONS_MAX];
  char arch[64];
  int count = 0;
  write_arch_option(request, arch, sizeof arch);
  options[count++] = arch;
  for (size_t i = 0; i < sizeof fixed_options / sizeof fixed_options[0]; i++)
    if (100 * nvrtc->major + nvrtc->minor >= fixed_options[i].since)
      options[count++] = fixed_options[i].text;
  if (request->line_info) options[count++] = "-lineinfo";
  double start = nsai_seconds();
  nsai_nvrtc_result result = nvrtc->nvrtcCompileProgram(program, count, options);
  *ms = 1e3 * (nsai_seconds() - start);
  return result;
}

nsa_status nsai_compile(nsai_compiler *compiler, const nsai_compile_request *request,
                        nsai_kernel_image *out) {
  nsa_status status = NSA_OK;
  const nsai_nvrtc *nvrtc;
  nsai_nvrtc_program program = NULL;
  nsai_nvrtc_result result;
  bool refused;
  memset(out, 0, sizeof *out);
  NSAI_TRY(open_compiler(compiler, &nvrtc));
  NSAI_TRY(check_arch(nvrtc, request));
  NSAI_TRY(NSAI_NVRTC(nvrtc, nvrtcCreateProgram(&program, request->source, unit_name,
                                                (int)compiler->templates.count,
                                                compiler->header_texts, compiler->header_names)));
  result = run_compiler(nvrtc, program, request, &out->compile_ms);
  NSAI_TRY_TO(fail, take_log(nvrtc, program, &out->log));
  if (compiler->dump_dir)
    nsai_compiler_dump(compiler->logger, compiler->dump_dir, request, nvrtc, program);
  if (result == NSAI_NVRTC_COMPILATION)
    NSAI_TRY_TO(fail, fail_compile(compiler, nvrtc, request, out));
  NSAI_TRY_TO(fail, nsai_nvrtc_status(nvrtc, result, "nvrtcCompileProgram"));
  NSAI_TRY_TO(fail, take_cubin(nvrtc, program, out));
  NSAI_TRY_TO(fail, check_image(compiler, nvrtc, request, out));
  /* The open above wrote the id; it does not change afterwards. */
  memcpy(out->compiler_id, compiler->compiler_id, sizeof out->compiler_id);
  nvrtc->nvrtcDestroyProgram(&program);
  return NSA_OK;
fail:
  nvrtc->nvrtcDestroyProgram(&program);
  refused = out->refused;
  nsai_kernel_image_fini(out);
  out->refused = refused;
  return status;
}
