/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The compiler's side: opening NVRTC, options, keys, error texts, the log's figures, compiling many
 * units at once. Tests that need a real NVRTC skip without one.
 */
#include "support/cmocka_all.h"

#include "base/writer.h"
#include "cache/cubin.h"
#include "compile/compiler.h"
#include "compile/ptxas_log.h"
#include "compile/sass_check.h"
#include "driver/arch.h"

#include <elf.h>
#include <limits.h>
#include <pthread.h>
#include <unistd.h>

static const char tiny_unit[] = "/* problem: test */\n"
                                "extern \"C\" __global__ void tiny(float *x) {\n"
                                "  __shared__ float s[64];\n"
                                "  s[threadIdx.x] = x[threadIdx.x];\n"
                                "  __syncthreads();\n"
                                "  x[threadIdx.x] = s[63 - threadIdx.x];\n"
                                "}\n";

/* A log that is kept, to see what a host would see. */
static char log_text[65536];
static void keep_log(void *user, int32_t level, const char *component, const char *text) {
  (void)user, (void)level, (void)component;
  assert_null(strchr(text, '\n'));
  size_t used = strlen(log_text);
  snprintf(log_text + used, sizeof log_text - used, "%s\n", text);
}

static bool have_nvrtc(void) {
  nsai_library_query query = { NULL, 0 };
  const nsai_nvrtc *nvrtc;
  return nsai_nvrtc_open(&query, NULL, &nvrtc) == NSA_OK;
}

static nsai_compiler *make_compiler(void) {
  nsai_compiler *compiler;
  nsai_compiler_options options = { 0 };
  assert_int_equal(nsai_compiler_create(&options, &compiler), NSA_OK);
  return compiler;
}

/* Compiles a unit for every architecture that the NVRTC knows; `look` sees each image. */
static void compile_for_all(const char *entry, const char *source,
                            void (*look)(const nsai_kernel_image *image)) {
  nsai_compiler *compiler = make_compiler();
  for (int32_t i = 0; nsai_arch_at(i); i++) {
    nsai_compile_request request = { entry, source, nsai_arch_at(i)->name, false };
    nsai_kernel_image image;
    nsa_status status = nsai_compile(compiler, &request, &image);
    if (status == NSA_E_UNSUPPORTED) continue; /* an NVRTC 12 that is older than the GPU */
    if (status != NSA_OK) fail_msg("%s", nsa_last_error());
    /* What this machine compiles, another one has to import. */
    assert_null(nsai_cubin_check(image.cubin, image.size, request.arch, entry));
    look(&image);
    nsai_kernel_image_fini(&image);
  }
  nsai_compiler_destroy(compiler);
}

/* A unit that does not compile, with a text that the error contains. Returns whether NVRTC's image
 * was refused. */
static bool expect_failure(nsai_compile_request request, nsa_status want, const char *text) {
  nsai_compiler *compiler = make_compiler();
  nsai_kernel_image image;
  assert_int_equal(nsai_compile(compiler, &request, &image), want);
  if (!strstr(nsa_last_error(), text)) fail_msg("no '%s' in: %s", text, nsa_last_error());
  nsai_compiler_destroy(compiler);
  return image.refused;
}

static void test_archs(void **state) {
  assert_string_equal(nsai_arch_of_capability(9, 0)->name, "sm_90a");
  assert_string_equal(nsai_arch_of_capability(8, 0)->name, "sm_80");
  assert_string_equal(nsai_arch_of_capability(8, 8)->name, "sm_87");
  assert_string_equal(nsai_arch_of_capability(12, 1)->name, "sm_120");
  assert_string_equal(nsai_arch_of_capability(10, 3)->name, "sm_103a");
  assert_null(nsai_arch_of_capability(10, 1)); /* 100a runs on 10.0 only */
  assert_null(nsai_arch_of_capability(7, 5));
  assert_null(nsai_arch_find("sm_90"));
  assert_int_equal(nsai_arch_find("sm_86")->shared_bytes, 99 * 1024);
  assert_int_equal(nsai_arch_find("sm_90a")->shared_bytes, 232448);
}

/* What people write for an architecture, and what they mean. */
static void test_arch_meant(void **state) {
  static const char *const meant[][2] = {
    { "sm_90", "sm_90a" },
    { "SM90A", "sm_90a" },
    { "9.0", "sm_90a" },
    { "90", "sm_90a" },
    { "compute_90", "sm_90a" },
    { "sm_100f", "sm_100a" },
    { "h100", "sm_90a" },
    { "H200", "sm_90a" },
    { "NVIDIA H100 80GB HBM3", "sm_90a" },
    { "hopper", "sm_90a" },
    { "A100-SXM4-80GB", "sm_80" },
    { "a10g", "sm_86" },
    { "RTX 4090", "sm_89" },
    { "NVIDIA GeForce RTX 5090", "sm_120" },
    { "RTX A6000", "sm_86" },
    { "NVIDIA RTX 6000 Ada Generation", "sm_89" },
    { "L40S", "sm_89" },
    { "B200", "sm_100a" },
    { "gb300", "sm_103a" },
    { "sm_88", "sm_87" },
    { "sm90_a", "sm_90a" },
    { "ms_80", "sm_80" },
  };
  static const char *const nothing[] = {
    "",     "sm_70", "7.5",
    "gpu",  "cpu",   "v100",
    "zork", "sm_",   "1234567890123456789012345678901234567890123456789012"
  };
  for (size_t i = 0; i < sizeof meant / sizeof meant[0]; i++) {
    const char *arch = nsai_arch_meant(meant[i][0]);
    if (!arch || strcmp(arch, meant[i][1]) != 0)
      fail_msg("%s: %s, not %s", meant[i][0], arch ? arch : "nothing", meant[i][1]);
  }
  for (size_t i = 0; i < sizeof nothing / sizeof nothing[0]; i++) {
    const char *arch = nsai_arch_meant(nothing[i]);
    if (arch) fail_msg("%s: %s, not nothing", nothing[i], arch);
  }
  const nsai_arch *arch;
  assert_int_equal(nsai_arch_demand("sm_80", &arch), NSA_OK);
  assert_string_equal(arch->name, "sm_80");
  assert_int_equal(nsai_arch_demand("h100", &arch), NSA_E_UNSUPPORTED);
  assert_non_null(strstr(nsa_last_error(), "did you mean \"sm_90a\"?"));
  assert_int_equal(nsai_arch_demand("GPU", &arch), NSA_E_UNSUPPORTED);
  assert_non_null(strstr(nsa_last_error(), "the GPU's own is taken"));
  assert_int_equal(nsai_arch_demand("CPU", &arch), NSA_E_UNSUPPORTED);
  assert_non_null(strstr(nsa_last_error(), "did you mean the device cpu"));
}

static void expect_tiny(const nsai_kernel_image *image) {
  assert_memory_equal(image->cubin, "\177ELF", 4);
  assert_true(image->size > 500);
  assert_in_range(image->registers, 1, 64);
  assert_int_equal(image->shared_bytes, 256);
  assert_int_equal(image->spill_bytes, 0);
  assert_true(image->compile_ms > 0);
  assert_true(strlen(image->compiler_id) > 32);
}

static void test_compiles_for_every_arch(void **state) {
  if (!have_nvrtc()) skip();
  compile_for_all("tiny", tiny_unit, expect_tiny);
}

/* 8 loads on their way; full occupancy is not needed. */
static void expect_64_registers(const nsai_kernel_image *image) {
  assert_in_range(image->registers, 1, 64);
}

/* The kernel that nsa-bench measures the memory's bandwidth with. */
static void test_stream_read(void **state) {
  const char *root = getenv("TEST_SOURCE_ROOT");
  char path[1024], text[8192] = "";
  if (!root || !have_nvrtc()) skip();
  snprintf(path, sizeof path, "%s/bench/stream_read.cuh", root);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  assert_in_range(fread(text, 1, sizeof text - 1, file), 500, sizeof text - 2);
  fclose(file);
  compile_for_all("stream_read", text, expect_64_registers);
}

/* One unit gives one cubin, byte by byte; line information is an option of its own. */
static void test_line_info_changes_the_cubin(void **state) {
  if (!have_nvrtc()) skip();
  nsai_compiler *compiler = make_compiler();
  nsai_compile_request request = { "tiny", tiny_unit, "sm_80", false };
  nsai_kernel_image plain, again, lined;
  assert_int_equal(nsai_compile(compiler, &request, &plain), NSA_OK);
  assert_int_equal(nsai_compile(compiler, &request, &again), NSA_OK);
  request.line_info = true;
  assert_int_equal(nsai_compile(compiler, &request, &lined), NSA_OK);
  assert_int_equal(plain.size, again.size);
  assert_memory_equal(plain.cubin, again.cubin, plain.size);
  assert_true(lined.size > plain.size);
  nsai_kernel_image_fini(&plain);
  nsai_kernel_image_fini(&again);
  nsai_kernel_image_fini(&lined);
  nsai_compiler_destroy(compiler);
}

static void test_error_names_template_and_line(void **state) {
  if (!have_nvrtc()) skip();
  nsai_logger logger;
  nsai_logger_init(&logger, keep_log, NULL, NSA_LOG_ERROR);
  nsai_compiler_options options = { .logger = &logger };
  nsai_compiler *compiler;
  assert_int_equal(nsai_compiler_create(&options, &compiler), NSA_OK);
  nsai_compile_request request = { "broken",
                                   "/* problem */\n#line 41 \"attend_window_sm80.cuh\"\n"
                                   "extern \"C\" __global__ void broken() { undeclared = 1; }\n",
                                   "sm_90a", false };
  nsai_kernel_image image;
  log_text[0] = '\0';
  assert_int_equal(nsai_compile(compiler, &request, &image), NSA_E_COMPILE);
  assert_non_null(strstr(nsa_last_error(), "kernel broken for sm_90a does not compile"));
  assert_non_null(strstr(nsa_last_error(), "attend_window_sm80.cuh(41): error"));
  assert_non_null(strstr(nsa_last_error(), "undeclared"));
  assert_non_null(strstr(log_text, "    3  extern \"C\" __global__ void broken()"));
  assert_null(image.cubin);
  nsai_compiler_destroy(compiler);
  nsai_logger_fini(&logger);
}

static void test_unknown_arch(void **state) {
  if (!have_nvrtc()) skip();
  expect_failure((nsai_compile_request){ "tiny", tiny_unit, "sm_42", false }, NSA_E_UNSUPPORTED,
                 "sm_80, sm_86");
}

/* 120 live floats per thread do not fit into the 32 registers of 2 x 1024 threads on an SM. */
static const nsai_compile_request fat_request = {
  "fat",
  "extern \"C\" __global__ void __launch_bounds__(1024, 2) fat(float *x) {\n"
  "  float r[120];\n"
  "  #pragma unroll\n"
  "  for (int i = 0; i < 120; i++) r[i] = x[i * 7];\n"
  "  __syncthreads();\n"
  "  #pragma unroll\n"
  "  for (int i = 0; i < 120; i++) x[i * 7] = r[119 - i];\n"
  "}\n",
  "sm_80", false
};

static void test_spills_are_refused(void **state) {
  if (!have_nvrtc()) skip();
  nsai_compile_request request = fat_request;
  assert_true(expect_failure(request, NSA_E_COMPILE, "kernel fat for sm_80 is refused: it spills"));
  request.last_resort = true;
  nsai_compiler *compiler = make_compiler();
  nsai_kernel_image image;
  assert_int_equal(nsai_compile(compiler, &request, &image), NSA_OK);
  assert_true(image.spill_bytes > 0 && image.size > 0 && !image.refused);
  assert_true(nsai_is_last_resort(&image));
  nsai_kernel_image_fini(&image);
  nsai_compiler_destroy(compiler);
}

/* A wgmma of 128 accumulators where a thread has 64 registers: no spilling helps. */
static void test_starved_is_refused(void **state) {
  if (!have_nvrtc()) skip();
  char source[8192];
  nsai_writer w = nsai_writer_open(source, sizeof source);
  nsai_write(&w, "extern \"C\" __global__ void __launch_bounds__(1024) starved(float *x) {\n"
                 "  float r[128];\n"
                 "  #pragma unroll\n"
                 "  for (int i = 0; i < 128; i++) r[i] = x[i];\n"
                 "  asm volatile(\"wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {");
  for (int i = 0; i < 128; i++) nsai_write(&w, "%s%%%d", i ? "," : "", i);
  nsai_write(&w, "}, 0, 0, 1, 1, 1, 0, 0;\" :");
  for (int i = 0; i < 128; i++) nsai_write(&w, "%s\"+f\"(r[%d])", i ? "," : " ", i);
  nsai_write(&w, ");\n"
                 "  #pragma unroll\n"
                 "  for (int i = 0; i < 128; i++) x[i] = r[i];\n"
                 "}\n");
  assert_true(w.used < sizeof source);
  assert_true(expect_failure((nsai_compile_request){ "starved", source, "sm_90a", false },
                             NSA_E_COMPILE, "kernel starved for sm_90a is refused: "));
}

/* A loop of copies by a policy to ADDRESS(a place that all lanes agree on) + a lane's offset. */
#define COPIES(address)                                                                            \
  "#include \"core/copy.cuh\"\n"                                                                   \
  "extern \"C\" __global__ void copies(const char *from, int bytes, int count, float *to) {\n"     \
  "  extern __shared__ __align__(1024) char shared[];\n"                                           \
  "  const u64 policy = l2_policy(true);\n"                                                        \
  "  const u32 ring = shared_address(shared);\n"                                                   \
  "  const u32 offset = (threadIdx.x % 128) * 16 ^ (threadIdx.x / 8 % 8 * 16);\n"                  \
  "  for (int i = 0; i < count; ++i)\n"                                                            \
  "    copy_async_16(" address                                                                     \
  "(ring + i % 3 * 4096) + offset, from + threadIdx.x * 16 + i * bytes,\n"                         \
  "                  bytes > (int)threadIdx.x, policy);\n"                                         \
  "  copy_async_commit();\n"                                                                       \
  "  copy_async_wait<0>();\n"                                                                      \
  "  to[threadIdx.x] = *(float *)(shared + threadIdx.x * 4);\n"                                    \
  "}\n"

static void expect_no_lost_register(const nsai_kernel_image *image) {
  assert_int_equal(nsai_find_lost_register(image->cubin, image->size), -1);
}

/* Copies whose uniform register the compiler loses are refused, as a last resort too;
 * lane_address() gives them none. */
static void test_lost_register(void **state) {
  if (!have_nvrtc()) skip();
  const nsai_nvrtc *nvrtc;
  assert_int_equal(nsai_nvrtc_open(&(nsai_library_query){ NULL, 0 }, NULL, &nvrtc), NSA_OK);
  const int32_t version = 100 * nvrtc->major + nvrtc->minor;
  const bool loses = 1209 <= version && version <= 1303; /* all of these were tried */
  compile_for_all("copies", COPIES("lane_address"), expect_no_lost_register);
  nsai_compiler *compiler = make_compiler();
  nsai_compile_request request = { "copies", COPIES(""), "sm_90a", .last_resort = true };
  nsai_kernel_image image;
  nsa_status status = nsai_compile(compiler, &request, &image);
  if (loses) {
    assert_int_equal(status, NSA_E_COMPILE);
    assert_non_null(strstr(nsa_last_error(), "lost the uniform register of its copy at 0x"));
    assert_true(image.refused);
  } else if (version > 1303) {
    assert_int_equal(status, NSA_OK);
  }
  nsai_kernel_image_fini(&image);
  nsai_compiler_destroy(compiler);
}

/* One function of two instructions, as an image of the sections' table and it. */
typedef struct small_image {
  Elf64_Ehdr header;
  Elf64_Shdr section;
  unsigned char code[40];
} small_image;

static small_image make_image(void) {
  small_image x = { 0 };
  memcpy(x.header.e_ident, ELFMAG, SELFMAG);
  x.header.e_ident[EI_CLASS] = ELFCLASS64;
  x.header.e_shentsize = sizeof x.section;
  x.header.e_shoff = offsetof(small_image, section);
  x.header.e_shnum = 1;
  x.section = (Elf64_Shdr){ .sh_type = SHT_PROGBITS,
                            .sh_flags = SHF_EXECINSTR,
                            .sh_offset = offsetof(small_image, code),
                            .sh_size = sizeof x.code };
  /* LDGSTS.E.BYPASS.128 [R13+UR0+0x2000], desc[UR1][R4.64], P1, as NVRTC 13.0 wrote it. */
  static const unsigned char copy[16] = { 0xae, 0x7d, 0x0d, 0x04, 0x00, 0x00, 0x00, 0x02,
                                          0x40, 0x1c, 0x90, 0x08, 0x00, 0xe2, 0x03, 0x00 };
  memcpy(x.code + 16, copy, sizeof copy);
  return x;
}

static int64_t find_in(small_image x) { return nsai_find_lost_register(&x, sizeof x); }

static void test_finds_lost_register(void **state) {
  small_image x = make_image();
  assert_int_equal(find_in(x), 16);
  x.code[24] = 0x50; /* UR16, as ptxas 13.4 writes it */
  assert_int_equal(find_in(x), -1);
  x = make_image(), x.code[17] = 0x7f; /* no uniform register takes part */
  assert_int_equal(find_in(x), -1);
  x = make_image(), x.section.sh_flags = 0;
  assert_int_equal(find_in(x), -1);
  x = make_image(), x.section.sh_size = 31;
  assert_int_equal(find_in(x), -1);
  x = make_image(), x.section.sh_size = UINT64_MAX;
  assert_int_equal(find_in(x), -1);
  x = make_image(), x.section.sh_offset = UINT64_MAX - 8;
  assert_int_equal(find_in(x), -1);
  x = make_image(), x.header.e_shoff = sizeof x - 8;
  assert_int_equal(find_in(x), -1);
  x = make_image(), x.header.e_shoff = UINT64_MAX;
  assert_int_equal(find_in(x), -1);
  x = make_image(), x.header.e_ident[0] = 0;
  assert_int_equal(find_in(x), -1);
  x = make_image();
  for (size_t size = 0; size < sizeof x.header; size++)
    assert_int_equal(nsai_find_lost_register(&x, size), -1);
}

static void test_log_figures(void **state) {
  nsai_ptxas_figures f;
  nsai_ptxas_read_log(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions "
      "are serialized due to insufficient register resources in function 'k'\n"
      "ptxas info    : Function properties for k\n"
      "ptxas         .     480 bytes stack frame, 476 bytes spill stores, 512 bytes "
      "spill loads\n"
      "ptxas info    : Used 255 registers, used 9 barriers, 1024 bytes smem\n",
      &f);
  assert_int_equal(f.registers, 255);
  assert_int_equal(f.spill_bytes, 988);
  assert_int_equal(f.stack_bytes, 480);
  assert_int_equal(f.shared_bytes, 1024);
  assert_int_equal(f.serial_wgmma, 1);
  assert_non_null(strstr(f.remark, "C7510"));
  nsai_ptxas_read_log("", &f);
  assert_int_equal(f.registers + f.spill_bytes + f.serial_wgmma, 0);
  nsai_ptxas_read_log("(C75\n(C7\n(C75x0)\n99999999999999999999 registers\n registers", &f);
  assert_int_equal(f.serial_wgmma, 0);
  assert_int_equal(f.registers, INT_MAX);
  assert_int_equal(f.starved, 0);
  nsai_ptxas_read_log(
      "ptxas fatal   : (C7602) Insufficient registers (80) to compile instruction at "
      "line 1708 in function k. Try to compile with register target of 94\n"
      "ptxas fatal   : Ptx assembly aborted due to errors\n",
      &f);
  assert_int_equal(f.starved, 1);
  assert_non_null(strstr(f.remark, "C7602"));
  char text[64];
  nsai_compiler_first_errors("a.cuh(3): error: x\nnote\na.cuh(4): error: y\n", text, sizeof text);
  assert_string_equal(text, "a.cuh(3): error: x\na.cuh(4): error: y");
  nsai_compiler_first_errors("", text, sizeof text);
  assert_string_equal(text, "(the compiler's log is empty)");
}

static void test_missing_compiler(void **state) {
  nsai_compiler_options options = { .nvrtc_path = "/nonexistent/libnvrtc.so.13" };
  nsai_compiler *compiler;
  nsai_kernel_image image;
  nsai_kernel_key key;
  nsai_compile_request request = { "tiny", tiny_unit, "sm_80", false };
  assert_int_equal(nsai_compiler_create(&options, &compiler), NSA_OK);
  assert_int_equal(nsai_compile(compiler, &request, &image), NSA_E_NO_COMPILER);
  assert_non_null(strstr(nsa_last_error(), "/nonexistent/libnvrtc.so.13 (No such file"));
  assert_non_null(strstr(nsa_last_error(), "runtime.nvrtc_path"));
  assert_int_equal(nsai_compiler_key(compiler, &request, &key), NSA_OK);
  assert_string_equal(key.compiler_id, "");
  nsai_kernel_key_fini(&key);
  nsai_compiler_destroy(compiler);
}

/* However the same file is named, it is opened once; a given path that fails is not replaced by
 * what a search would find. */
static void test_search(void **state) {
  nsai_library_query query = { NULL, 0 };
  const nsai_nvrtc *searched, *again;
  char folder[PATH_MAX];
  if (nsai_nvrtc_open(&query, NULL, &searched) != NSA_OK) skip();
  snprintf(folder, sizeof folder, "%s", searched->library.path);
  *strrchr(folder, '/') = '\0';
  query.path = folder;
  assert_int_equal(nsai_nvrtc_open(&query, NULL, &again), NSA_OK);
  assert_ptr_equal(searched, again);
  query.path = NULL; /* loaded by now: the search shares the copy */
  assert_int_equal(nsai_nvrtc_open(&query, NULL, &again), NSA_OK);
  assert_ptr_equal(searched, again);
  if (getenv("NSA_NVRTC_PATH")) return; /* the machine needs it: leave it alone */
  query.max_major = 11;                 /* no name is left to try */
  assert_int_equal(nsai_nvrtc_open(&query, NULL, &again), NSA_E_NO_COMPILER);
  query.max_major = 0;
  setenv("NSA_NVRTC_PATH", "/nonexistent", 1);
  assert_int_equal(nsai_nvrtc_open(&query, NULL, &again), NSA_E_NO_COMPILER);
  assert_null(again);
  unsetenv("NSA_NVRTC_PATH");
}

/* A given NVRTC that is newer than the driver is refused in words, before anything is compiled. */
static void test_newer_than_the_driver(void **state) {
  nsai_library_query query = { NULL, 0 };
  const nsai_nvrtc *nvrtc;
  if (nsai_nvrtc_open(&query, NULL, &nvrtc) != NSA_OK) skip();
  nsai_compiler_options options = { .nvrtc_path = nvrtc->library.path,
                                    .driver_version = (nvrtc->major - 1) * 1000 };
  nsai_compiler *compiler;
  nsai_kernel_image image;
  nsai_compile_request request = { "tiny", tiny_unit, "sm_80", false };
  assert_int_equal(nsai_compiler_create(&options, &compiler), NSA_OK);
  assert_int_equal(nsai_compile(compiler, &request, &image), NSA_E_NO_DRIVER);
  assert_non_null(strstr(nsa_last_error(), "cannot load kernels compiled by NVRTC"));
  nsai_compiler_destroy(compiler);
}

/* The id read from the file is the one of the loaded library, so a cold and a warm process agree.
 */
static void test_key_is_the_same_before_and_after_opening(void **state) {
  if (!have_nvrtc()) skip();
  nsai_compiler *compiler = make_compiler();
  nsai_compile_request request = { "tiny", tiny_unit, "sm_80", false };
  nsai_kernel_key before, after, lined;
  nsai_kernel_image image;
  assert_int_equal(nsai_compiler_key(compiler, &request, &before), NSA_OK);
  assert_int_equal(nsai_compile(compiler, &request, &image), NSA_OK);
  assert_int_equal(nsai_compiler_key(compiler, &request, &after), NSA_OK);
  assert_string_equal(before.digest, after.digest);
  assert_string_equal(before.compiler_id, after.compiler_id);
  assert_string_equal(image.compiler_id, after.compiler_id);
  request.line_info = true;
  assert_int_equal(nsai_compiler_key(compiler, &request, &lined), NSA_OK);
  assert_string_not_equal(lined.digest, after.digest);
  nsai_kernel_key_fini(&before);
  nsai_kernel_key_fini(&after);
  nsai_kernel_key_fini(&lined);
  nsai_kernel_image_fini(&image);
  nsai_compiler_destroy(compiler);
}

/* The file of a library and its loaded image carry one build-id; notes that lie are refused. */
static void test_build_id(void **state) {
  static const unsigned char good[] = "\4\0\0\0\3\0\0\0\3\0\0\0GNU\0\1\2\xab";
  static const unsigned char far[] = "\4\0\0\0\377\377\377\377\3\0\0\0GNU\0\1\2\3";
  char id[NSAI_BUILD_ID_CHARS];
  assert_true(nsai_build_id_in_notes(good, sizeof good - 1, id));
  assert_string_equal(id, "0102ab");
  assert_false(nsai_build_id_in_notes(far, sizeof far - 1, id));
  for (size_t n = 0; n < sizeof good - 1; n++) assert_false(nsai_build_id_in_notes(good, n, id));
  assert_false(nsai_build_id_of_file("/dev/null", id));
  assert_false(nsai_build_id_of_file("/etc/passwd", id));
}

typedef struct progress_log {
  int64_t calls, last, cancel_at;
  int64_t handed_on, failed; /* jobs; those of them that failed */
  pthread_t caller;
} progress_log;

static int32_t count_progress(void *user, int64_t done, int64_t total, const char *what) {
  progress_log *log = user;
  assert_non_null(what);
  assert_true(done <= total && done >= log->last);
  assert_true(log->handed_on >= done);
  log->calls++;
  log->last = done;
  return log->cancel_at >= 0 && done >= log->cancel_at;
}

/* Takes the source away, which shows that no job comes twice. */
static void count_finished(void *user, nsai_compile_job *job) {
  progress_log *log = user;
  assert_true(pthread_equal(pthread_self(), log->caller));
  assert_non_null(job->request.source);
  assert_true((job->status == NSA_OK) == (job->image.cubin != NULL));
  job->request.source = NULL;
  log->handed_on++;
  log->failed += job->status != NSA_OK;
}

enum { JOBS = 8 };
static char sources[JOBS][400];

static void make_jobs(nsai_compile_job *jobs) {
  memset(jobs, 0, JOBS * sizeof *jobs);
  for (int i = 0; i < JOBS; i++) {
    snprintf(sources[i], sizeof sources[i],
             "extern \"C\" __global__ void many(float *x) { x[threadIdx.x] += %d; }\n", i);
    jobs[i].request = (nsai_compile_request){ "many", sources[i], "sm_80", false };
  }
}

static void free_jobs(nsai_compile_job *jobs) {
  for (int i = 0; i < JOBS; i++) {
    nsai_kernel_image_fini(&jobs[i].image);
    free(jobs[i].error);
  }
}

static void test_many(void **state) {
  if (!have_nvrtc()) skip();
  nsai_compiler *compiler = make_compiler();
  nsai_compile_job jobs[JOBS];
  progress_log log = { .cancel_at = -1, .caller = pthread_self() };
  nsai_compile_many_options run = {
    .threads = 3, .progress = count_progress, .finished = count_finished, .user = &log
  };
  make_jobs(jobs);
  assert_int_equal(nsai_compile_many(compiler, jobs, JOBS, &run), NSA_OK);
  assert_int_equal(log.last, JOBS);
  assert_int_equal(log.handed_on, JOBS);
  assert_int_equal(log.failed, 0);
  for (int i = 0; i < JOBS; i++) assert_true(jobs[i].image.size > 0);
  free_jobs(jobs);

  make_jobs(jobs);
  jobs[2].request.source = "extern \"C\" __global__ void many() { nonsense; }\n";
  log = (progress_log){ .cancel_at = -1, .caller = pthread_self() };
  run = (nsai_compile_many_options){
    .threads = 2, .keep_going = true, .finished = count_finished, .user = &log
  };
  assert_int_equal(nsai_compile_many(compiler, jobs, JOBS, &run), NSA_E_COMPILE);
  assert_int_equal(log.handed_on, JOBS);
  assert_int_equal(log.failed, 1);
  assert_non_null(strstr(nsa_last_error(), "nonsense"));
  for (int i = 0; i < JOBS; i++) assert_int_equal(jobs[i].status, i == 2 ? NSA_E_COMPILE : NSA_OK);
  free_jobs(jobs);
  nsai_compiler_destroy(compiler);
}

/* On request a refused kernel stops no others; any other failure does. */
static void test_past_refused(void **state) {
  if (!have_nvrtc()) skip();
  nsai_compiler *compiler = make_compiler();
  const nsai_compile_many_options run = { .threads = 1, .past_refused = true };
  nsai_compile_job jobs[JOBS];
  make_jobs(jobs);
  jobs[0].request = fat_request;
  assert_int_equal(nsai_compile_many(compiler, jobs, JOBS, &run), NSA_E_COMPILE);
  assert_true(jobs[0].image.refused);
  for (int i = 1; i < JOBS; i++) assert_int_equal(jobs[i].status, NSA_OK);
  free_jobs(jobs);
  make_jobs(jobs);
  jobs[0].request = fat_request;
  jobs[2].request.source = "extern \"C\" __global__ void many() { nonsense; }\n";
  assert_int_equal(nsai_compile_many(compiler, jobs, JOBS, &run), NSA_E_COMPILE);
  assert_non_null(strstr(nsa_last_error(), "nonsense"));
  assert_int_equal(jobs[1].status, NSA_OK);
  for (int i = 3; i < JOBS; i++) assert_int_equal(jobs[i].status, NSA_E_CANCELLED);
  free_jobs(jobs);
  nsai_compiler_destroy(compiler);
}

static void test_cancel(void **state) {
  if (!have_nvrtc()) skip();
  nsai_compiler *compiler = make_compiler();
  for (int64_t at = 0; at < 3; at++) {
    nsai_compile_job jobs[JOBS];
    progress_log log = { .cancel_at = at, .caller = pthread_self() };
    nsai_compile_many_options run = {
      .threads = 2, .progress = count_progress, .finished = count_finished, .user = &log
    };
    make_jobs(jobs);
    assert_int_equal(nsai_compile_many(compiler, jobs, JOBS, &run), NSA_E_CANCELLED);
    int finished = 0;
    for (int i = 0; i < JOBS; i++) {
      assert_true(jobs[i].status == NSA_OK || jobs[i].status == NSA_E_CANCELLED);
      finished += jobs[i].status == NSA_OK;
    }
    assert_true(finished >= at && finished < JOBS);
    assert_int_equal(log.handed_on, finished);
    free_jobs(jobs);
  }
  nsai_compiler_destroy(compiler);
}

static void test_dump(void **state) {
  if (!have_nvrtc()) skip();
  char folder[] = "/tmp/nsa-test-dump-XXXXXX";
  assert_non_null(mkdtemp(folder));
  nsai_compiler_options options = { .dump_dir = folder };
  nsai_compiler *compiler;
  nsai_kernel_image image;
  nsai_compile_request request = { "tiny", tiny_unit, "sm_80", false };
  char planted[64], aim[64];
  snprintf(planted, sizeof planted, "%s/tiny.sm_80.ptx", folder);
  snprintf(aim, sizeof aim, "%s/aim", folder);
  assert_int_equal(symlink(aim, planted), 0);
  assert_int_equal(nsai_compiler_create(&options, &compiler), NSA_OK);
  assert_int_equal(nsai_compile(compiler, &request, &image), NSA_OK);
  assert_int_not_equal(access(aim, F_OK), 0); /* the link is not followed */
  static const char *const endings[] = { "cu", "log", "ptx", "cubin" };
  for (int i = 0; i < 4; i++) {
    char path[128];
    snprintf(path, sizeof path, "%s/tiny.sm_80.%s", folder, endings[i]);
    assert_int_equal(unlink(path), 0);
  }
  assert_int_equal(rmdir(folder), 0);
  nsai_kernel_image_fini(&image);
  nsai_compiler_destroy(compiler);
}

/* The compiler must not drag the driver in: NVRTC's own cache would. */
static void test_leaves_the_process_alone(void **state) {
  if (!have_nvrtc()) skip();
  FILE *maps = fopen("/proc/self/maps", "re");
  assert_non_null(maps);
  char line[4096];
  while (fgets(line, sizeof line, maps)) assert_null(strstr(line, "libcuda.so"));
  fclose(maps);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_archs),
    cmocka_unit_test(test_arch_meant),
    cmocka_unit_test(test_log_figures),
    cmocka_unit_test(test_build_id),
    cmocka_unit_test(test_missing_compiler),
    cmocka_unit_test(test_compiles_for_every_arch),
    cmocka_unit_test(test_line_info_changes_the_cubin),
    cmocka_unit_test(test_stream_read),
    cmocka_unit_test(test_error_names_template_and_line),
    cmocka_unit_test(test_unknown_arch),
    cmocka_unit_test(test_spills_are_refused),
    cmocka_unit_test(test_starved_is_refused),
    cmocka_unit_test(test_lost_register),
    cmocka_unit_test(test_finds_lost_register),
    cmocka_unit_test(test_key_is_the_same_before_and_after_opening),
    cmocka_unit_test(test_search),
    cmocka_unit_test(test_newer_than_the_driver),
    cmocka_unit_test(test_many),
    cmocka_unit_test(test_past_refused),
    cmocka_unit_test(test_cancel),
    cmocka_unit_test(test_dump),
    cmocka_unit_test(test_leaves_the_process_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
