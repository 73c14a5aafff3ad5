/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Which kernels may begin before the one before them has ended, on the fake GPU, and that every
 * kernel waits where it may.
 */
#include "support/cmocka_all.h"

#include "compile/templates.h"
#include "machine.h"
#include "params/attention.h"
#include "run/run.h"

/* ---- launches ---- */

static int early[2]; /* of the last run: attend_window, attend_compressed */

/* Runs where the host can read what a kernel gets. */
static double look(const fake_cuda_launch *launch, const void *params) {
  if (!strcmp(launch->name, "attend_window_sm90"))
    early[0] = ((const NsaiAttendTma *)params)->attend.early;
  if (!strcmp(launch->name, "attend_compressed_sm90"))
    early[1] = ((const NsaiAttendTma *)params)->attend.early;
  if (!strcmp(launch->name, "attend_dense_sm90")) /* of the selected branch */
    assert_int_equal(((const NsaiAttendTma *)params)->attend.early, 0);
  return 1;
}

/* Runs; a launch may begin early where it is '1' in `overlaps`. */
static void expect_overlaps(nsa_status status, const char *overlaps) {
  const fake_cuda_state *r = machine_record();
  machine_expect("run", status, NSA_OK, NULL);
  assert_int_equal(r->launches, (int)strlen(overlaps));
  for (int i = 0; i < r->launches; i++)
    if (r->launch[i].overlaps != overlaps[i] - '0')
      fail_msg("launch %d, %s: %d", i, r->launch[i].name, r->launch[i].overlaps);
}

static void begin(machine *m, const machine_request *request) {
  machine_init(m, request);
  *machine_record() = (fake_cuda_state){ .retained = 1, .kernel = look };
  early[0] = early[1] = -1;
}

/* All but the first; but nothing behind what is not a kernel of the run. */
static void test_overlap(void **state) {
  machine m;
  begin(&m, &(machine_request){ .gpu = true });
  expect_overlaps(machine_forward(&m), "01111"); /* compress, window, compressed, select, dense */
  assert_int_equal(early[0], 1);
  assert_int_equal(early[1], 1);
  machine_free(&m);
  begin(&m, &(machine_request){ .gpu = true, .phi = NSAI_PHI_MLP });
  /* gather, product, activation, two products, bias, of K and of V; then as above. */
  expect_overlaps(machine_forward(&m), "000000100000"
                                       "1111");
  assert_int_equal(early[0], 1);
  assert_int_equal(early[1], 1);
  machine_free(&m);
}

/* The window branch does not begin early behind what makes its gates; the compressed one not behind
 * what makes its keys. */
static void test_early(void **state) {
  machine m;
  begin(&m, &(machine_request){
                .gpu = true, .phi = NSAI_PHI_EXTERNAL, .gate = NSAI_GATE_MLP, .gate_hidden = 8 });
  machine_expect("window behind gates", machine_forward(&m), NSA_OK, NULL);
  assert_int_equal(early[0], 0);
  assert_int_equal(early[1], 1);
  machine_free(&m);
  begin(&m, &(machine_request){ .gpu = true });
  m.exec.branches = 1u << NSA_CMP;
  for (int b = NSA_CMP + 1; b < NSA_BRANCHES; b++)
    m.toy.io.o_branch[b] = m.toy.io.lse[b] = (nsa_tensor){ 0 };
  machine_expect("compressed behind compress", machine_forward(&m), NSA_OK, NULL);
  assert_int_equal(early[0], -1);
  assert_int_equal(early[1], 0);
  machine_free(&m);
}

static int marked;

static nsa_status count_stage(void *user, nsai_stage stage, bool begins) {
  (void)user;
  (void)stage;
  (void)begins;
  marked++;
  return NSA_OK;
}

/* A stage between events is timed alone. */
static void test_stage_callbacks(void **state) {
  machine m;
  const nsai_stage_callbacks callbacks = { .on_stage = count_stage };
  begin(&m, &(machine_request){ .gpu = true });
  marked = 0;
  expect_overlaps(nsai_run_with_callbacks(m.plan, &m.exec, &m.toy.batch, &m.toy.io, NULL,
                                          &callbacks),
                  "00000");
  assert_int_equal(marked, 10);
  assert_int_equal(early[0], 0);
  assert_int_equal(early[1], 0);
  machine_free(&m);
}

static void test_where(void **state) {
  nsai_device device = { .arch = nsai_arch_find("sm_90a"), .driver_version = 12030 };
  assert_true(nsai_queue_open(&device, NULL).overlaps);
  device.driver_version = 12020;
  assert_false(nsai_queue_open(&device, NULL).overlaps);
  device.driver_version = 13000;
  device.arch = nsai_arch_find("sm_89");
  assert_false(nsai_queue_open(&device, NULL).overlaps);
  device.arch = nsai_arch_find("sm_120");
  assert_true(nsai_queue_open(&device, NULL).overlaps);
}

/* ---- kernels ---- */

static bool waits(const char *text) {
  return strstr(text, "begin_kernel();") || strstr(text, "wait_for_kernel_before();");
}

/* The loops that kernels share; core/launch.cuh has the functions themselves. */
static bool includes_waiting(const char *text) {
  for (size_t i = 0; i < nsai_embedded_template_count; i++) {
    const nsai_template *t = &nsai_embedded_templates[i];
    if (!strstr(t->text, "extern \"C\" __global__") && strcmp(t->name, "core/launch.cuh") != 0 &&
        waits(t->text) && strstr(text, t->name))
      return true;
  }
  return false;
}

static void test_every_kernel_waits(void **state) {
  int kernels = 0;
  for (size_t i = 0; i < nsai_embedded_template_count; i++) {
    const nsai_template *t = &nsai_embedded_templates[i];
    if (!strstr(t->text, "extern \"C\" __global__")) continue;
    kernels++;
    if (!waits(t->text) && !includes_waiting(t->text))
      fail_msg("%s does not wait for the kernel before it: core/launch.cuh", t->name);
  }
  assert_true(kernels > 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_overlap),
    cmocka_unit_test(test_early),
    cmocka_unit_test(test_stage_callbacks),
    cmocka_unit_test(test_where),
    cmocka_unit_test(test_every_kernel_waits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
