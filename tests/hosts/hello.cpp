// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// A C++ host that knows the installed headers alone: a model, ordinary causal attention on the CPU
// device, errors turned into exceptions.
#include <nsa/nsa.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

constexpr int64_t kTokens = 40, kHeads = 2, kDim = 16;

void check(nsa_status status) {
  if (status != NSA_OK) throw std::runtime_error(nsa_last_error());
}

nsa_tensor tensor(std::vector<float> &data, int64_t heads) {
  nsa_tensor t{};
  t.data = data.data();
  t.ndim = 3;
  t.dtype = NSA_F32;
  t.shape[0] = kTokens, t.shape[1] = heads, t.shape[2] = kDim;
  t.stride[0] = heads * kDim, t.stride[1] = kDim, t.stride[2] = 1;
  return t;
}

void run() {
  nsa_model model = NSA_MODEL_INIT;
  model.heads = kHeads, model.kv_heads = 1, model.head_dim_qk = kDim, model.dtype = NSA_F32;
  model.compress_block = 16, model.compress_stride = 8;
  model.select_block = 16, model.select_count = 4, model.window = 16;
  nsa_options options = NSA_OPTIONS_INIT;
  options.model = &model;
  options.device = "cpu";
  nsa_ctx *made = nullptr;
  check(nsa_create(nullptr, &options, &made));
  std::unique_ptr<nsa_ctx, decltype(&nsa_destroy)> ctx(made, nsa_destroy);

  nsa_problem problem = NSA_PROBLEM_INIT;
  problem.op = NSA_OP_DENSE;
  problem.max_tokens = kTokens;
  problem.max_seqs = 1;
  nsa_plan *planned = nullptr;
  check(nsa_plan_create(ctx.get(), &problem, nullptr, nullptr, &planned));
  std::unique_ptr<nsa_plan, decltype(&nsa_plan_destroy)> plan(planned, nsa_plan_destroy);

  std::vector<float> q(kTokens * kHeads * kDim), k(kTokens * kDim), v(kTokens * kDim), o(q.size());
  for (int64_t t = 0; t < kTokens; t++)
    for (int64_t d = 0; d < kDim; d++) v[t * kDim + d] = static_cast<float>(t);
  nsa_caps caps = NSA_CAPS_INIT;
  check(nsa_plan_caps(plan.get(), &caps));
  std::vector<char> workspace(caps.workspace_bytes + caps.workspace_align);
  void *aligned = workspace.data();
  size_t space = workspace.size();
  nsa_exec exec = NSA_EXEC_INIT;
  exec.workspace = std::align(caps.workspace_align, caps.workspace_bytes, aligned, space);
  exec.workspace_bytes = caps.workspace_bytes;
  nsa_io io = NSA_IO_INIT;
  io.q = tensor(q, kHeads), io.o = tensor(o, kHeads);
  io.kv.k[0] = tensor(k, 1), io.kv.v[0] = tensor(v, 1);
  check(nsa_dense(plan.get(), &exec, nullptr, &io));

  // All logits are 0, so row t is the mean of 0 .. t.
  for (int64_t t = 0; t < kTokens; t++) {
    float got = o[t * kHeads * kDim];
    if (std::fabs(got - static_cast<float>(t) / 2) > 1e-5f * static_cast<float>(kTokens))
      throw std::runtime_error("row " + std::to_string(t) + " is " + std::to_string(got));
  }
}

} // namespace

int main() {
  try {
    run();
  } catch (const std::exception &error) {
    std::fprintf(stderr, "hello.cpp: %s\n", error.what());
    return 1;
  }
  std::puts("hello from C++");
  return 0;
}
