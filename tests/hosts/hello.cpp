// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// A C++ host that knows the installed headers alone: a forward, ordinary causal attention, and a decode
// over a cache on the CPU device, through nsa.hpp.
#include <nsa/nsa.hpp>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kTokens = 40, kHeads = 2, kDim = 16;

static_assert(std::is_move_constructible<nsa::plan>::value, "plans move");
static_assert(!std::is_copy_constructible<nsa::plan>::value, "and are not copied");

nsa::context make_context() {
  auto model = nsa::make<nsa_model>();
  model.heads = kHeads, model.kv_heads = 1, model.head_dim_qk = kDim, model.dtype = NSA_F32;
  model.compress_block = 16, model.compress_stride = 8;
  model.select_block = 16, model.select_count = 4, model.window = 16;
  model.kv_sharing = NSA_KV_SHARED, model.gate = NSA_GATE_WEIGHTS;
  auto options = nsa::make<nsa_options>();
  options.model = &model;
  options.device = "cpu";
  return nsa::context(options);
}

struct workspace {
  explicit workspace(const nsa_caps &caps) : bytes(caps.workspace_bytes + caps.workspace_align) {
    void *at = bytes.data();
    size_t space = bytes.size();
    exec.workspace = std::align(caps.workspace_align, caps.workspace_bytes, at, space);
    exec.workspace_bytes = caps.workspace_bytes;
  }
  std::vector<char> bytes;
  nsa_exec exec = nsa::make<nsa_exec>();
};

// A plan and its run, one after the other.
void run_once(const nsa::context &ctx, const nsa_problem &problem,
              nsa_status (*call)(const nsa_plan *, const nsa_exec *, const nsa_batch *,
                                 const nsa_io *),
              const nsa_batch &batch, const nsa_io &io) {
  const nsa::plan plan(ctx, problem);
  workspace room(plan.caps());
  nsa::check(call(plan.get(), &room.exec, &batch, &io));
}

// Writes k and v of io into a cache of one row, and returns what the last query sees of it.
float decode(const nsa::context &ctx, nsa_io io) {
  constexpr int64_t room = 48, blocks = room / 8;
  std::vector<float> k(room * kDim), v(k.size()), k_cmp(blocks * kDim), v_cmp(k_cmp.size()),
      o(kHeads * kDim);
  int32_t length = kTokens;
  auto batch = nsa::make<nsa_batch>();
  batch.num_seqs = 1;
  batch.kv_len = nsa::tensor::of(&length, { 1 });
  io.new_kv = io.kv;
  io.kv.k[0] = nsa::tensor::of(k.data(), { 1, room, 1, kDim });
  io.kv.v[0] = nsa::tensor::of(v.data(), { 1, room, 1, kDim });
  io.kv.k_cmp = nsa::tensor::of(k_cmp.data(), { 1, blocks, 1, kDim });
  io.kv.v_cmp = nsa::tensor::of(v_cmp.data(), { 1, blocks, 1, kDim });
  auto problem = nsa::make<nsa_problem>();
  problem.op = NSA_OP_APPEND;
  problem.max_tokens = kTokens, problem.max_kv_len = room;
  run_once(ctx, problem, nsa_kv_append, batch, io);

  problem.op = NSA_OP_DECODE, problem.max_tokens = 0;
  io.q = nsa::tensor::of(static_cast<float *>(io.q.data), { 1, kHeads, kDim });
  io.gate.value = nsa::tensor::of(static_cast<float *>(io.gate.value.data), { 1, kHeads, 3 });
  io.o = nsa::tensor::of(o.data(), { 1, kHeads, kDim });
  run_once(ctx, problem, nsa_decode, batch, io);
  return o.back();
}

// Row t of v holds t: dense attention with equal scores gives the mean, t / 2, and so does a window.
void run() {
  const nsa::context ctx = make_context();
  auto problem = nsa::make<nsa_problem>();
  problem.op = NSA_OP_DENSE;
  problem.max_tokens = kTokens;
  nsa::plan moved(ctx, problem);
  const nsa::plan dense = std::move(moved);
  problem.op = NSA_OP_FORWARD;
  const nsa::plan forward(ctx, problem);

  std::vector<float> q(kTokens * kHeads * kDim), k(kTokens * kDim), v(kTokens * kDim), o(q.size()),
      gates(kTokens * kHeads * 3);
  for (int64_t t = 0; t < kTokens; t++)
    for (int64_t d = 0; d < kDim; d++) v[t * kDim + d] = static_cast<float>(t);
  for (size_t i = 2; i < gates.size(); i += 3) gates[i] = 1; // the window alone
  auto io = nsa::make<nsa_io>();
  io.q = nsa::tensor::of(q.data(), { kTokens, kHeads, kDim });
  io.o = nsa::tensor::of(o.data(), { kTokens, kHeads, kDim });
  io.kv.k[0] = nsa::tensor::of(k.data(), { kTokens, 1, kDim });
  io.kv.v[0] = nsa::tensor::of(v.data(), { kTokens, 1, kDim });
  io.gate.value = nsa::tensor::of(gates.data(), { kTokens, kHeads, 3 });

  workspace room(dense.caps());
  nsa::check(nsa_dense(dense.get(), &room.exec, nullptr, &io));
  if (std::fabs(o.back() - (kTokens - 1) / 2.0f) > 1e-5f) throw std::runtime_error("dense");
  workspace other(forward.caps());
  nsa::check(nsa_forward(forward.get(), &other.exec, nullptr, &io));
  if (std::fabs(o.back() - (kTokens - 8.5f)) > 1e-5f) throw std::runtime_error("window");
  if (decode(ctx, io) != o.back()) throw std::runtime_error("decode");

  if (ctx.explain(problem).find("reference") == std::string::npos)
    throw std::runtime_error("explain");
  if (ctx.config().find("heads: 2") == std::string::npos) throw std::runtime_error("config");
  io.o = nsa_tensor();
  try {
    nsa::check(nsa_forward(forward.get(), &other.exec, nullptr, &io));
  } catch (const nsa::error &error) {
    if (error.status() != NSA_E_ARG || std::strcmp(error.name(), "NSA_E_ARG")) throw;
    std::printf("hello from C++: %s\n", error.what());
    return;
  }
  throw std::runtime_error("an absent output passed");
}

} // namespace

int main() {
  try {
    run();
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
