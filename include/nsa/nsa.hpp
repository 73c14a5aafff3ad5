// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// C++14 over nsa.h: exceptions, owners of handles, and tensors in one line. Nothing here computes or
// decides; every struct and call is that of the C headers, which document them.
//
//   nsa::context ctx(options);                            // throws nsa::error
//   nsa::plan plan(ctx, problem);
//   auto io = nsa::make<nsa_io>();
//   io.q = nsa::tensor::of(q, NSA_BF16, {T, HQ, D});
//   nsa::check(nsa_forward(plan.get(), &exec, nullptr, &io));
#ifndef NSA_NSA_HPP
#define NSA_NSA_HPP

#include <nsa/nsa.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace nsa {

// A failed call. what() is nsa_last_error(): what was wrong, where, and what to do about it.
class error : public std::runtime_error {
public:
  explicit error(nsa_status status)
      : std::runtime_error(*nsa_last_error() ? nsa_last_error() : nsa_status_text(status)),
        status_(status) {}
  nsa_status status() const noexcept { return status_; }
  const char *name() const noexcept { return nsa_status_name(status_); }

private:
  nsa_status status_;
};

// Throws if a call has failed. Call it in the same thread, right after the call.
inline void check(nsa_status status) {
  if (status != NSA_OK) throw error(status);
}

// A struct with its struct_size, and every other field zero: make<nsa_io>(), make<nsa_problem>() ...
template <class Struct> Struct make() { return nsa_sized<Struct>(); }

// Views of the caller's memory.
struct tensor {
  // A contiguous tensor of 1 to NSA_MAX_DIMS dimensions. Of other numbers: std::invalid_argument.
  static nsa_tensor of(void *data, int32_t dtype, std::initializer_list<int64_t> shape) {
    if (shape.size() == 0 || shape.size() > NSA_MAX_DIMS)
      throw std::invalid_argument("a tensor has 1 to " + std::to_string(NSA_MAX_DIMS) +
                                  " dimensions, not " + std::to_string(shape.size()));
    nsa_tensor t = nsa_tensor();
    t.data = data;
    t.dtype = dtype;
    t.ndim = static_cast<int32_t>(shape.size());
    int i = 0;
    for (int64_t n : shape) t.shape[i++] = n;
    int64_t stride = 1;
    while (i-- > 0) {
      t.stride[i] = stride;
      stride *= t.shape[i];
    }
    return t;
  }
  // The same with the dtype of the elements. bf16 and fp16 have no type of their own in C++14.
  static nsa_tensor of(float *data, std::initializer_list<int64_t> shape) {
    return of(data, NSA_F32, shape);
  }
  static nsa_tensor of(int32_t *data, std::initializer_list<int64_t> shape) {
    return of(data, NSA_I32, shape);
  }
  static nsa_tensor of(int64_t *data, std::initializer_list<int64_t> shape) {
    return of(data, NSA_I64, shape);
  }
};

namespace detail {
struct destroy_context {
  void operator()(nsa_ctx *ctx) const noexcept { nsa_destroy(ctx); }
};
struct destroy_plan {
  void operator()(nsa_plan *plan) const noexcept { nsa_plan_destroy(plan); }
};
struct destroy_shard {
  void operator()(nsa_shard *shard) const noexcept { nsa_shard_destroy(shard); }
};
struct destroy_comm {
  void operator()(nsa_comm *comm) const noexcept { nsa_comm_destroy(comm); }
};
// Calls a function that writes a text as snprintf does.
template <class Write> std::string text(Write write) {
  std::string out(write(nullptr, 0), '\0');
  for (;;) {
    const size_t size = write(&out[0], out.size() + 1);
    const bool whole = size <= out.size();
    out.resize(size);
    if (whole) return out;
  }
}
} // namespace detail

// Owns an nsa_ctx. Plans stay valid when their context goes.
class context {
public:
  // From options.model, options.yaml_text or a file. Options may be left out where there is a file.
  explicit context(const nsa_options &options, const char *yaml_path = nullptr) {
    nsa_ctx *made = nullptr;
    check(nsa_create(yaml_path, &options, &made));
    ctx_.reset(made);
  }
  explicit context(const char *yaml_path) : context(make<nsa_options>(), yaml_path) {}

  nsa_ctx *get() const noexcept { return ctx_.get(); }

  // Why a problem is served as it is.
  std::string explain(const nsa_problem &problem) const {
    return detail::text(
        [&](char *buf, size_t size) { return nsa_explain(get(), &problem, buf, size); });
  }
  // The effective configuration as YAML.
  std::string config(bool with_origin = false) const {
    return detail::text(
        [&](char *buf, size_t size) { return nsa_config_dump(get(), with_origin, buf, size); });
  }

private:
  std::unique_ptr<nsa_ctx, detail::destroy_context> ctx_;
};

// Owns an nsa_plan.
class plan {
public:
  plan(const context &ctx, const nsa_problem &problem, nsa_progress_fn progress = nullptr,
       void *user = nullptr) {
    nsa_plan *made = nullptr;
    check(nsa_plan_create(ctx.get(), &problem, progress, user, &made));
    plan_.reset(made);
  }

  const nsa_plan *get() const noexcept { return plan_.get(); }

  // What serves it, and the workspace that a run needs.
  nsa_caps caps() const {
    nsa_caps caps = make<nsa_caps>();
    check(nsa_plan_caps(get(), &caps));
    return caps;
  }

private:
  std::unique_ptr<nsa_plan, detail::destroy_plan> plan_;
};

// Owns an nsa_shard. Runs that were enqueued with it need it no more.
class shard {
public:
  shard(const context &ctx, const nsa_shard_options &options) {
    nsa_shard *made = nullptr;
    check(nsa_shard_create(ctx.get(), &options, &made));
    shard_.reset(made);
  }

  const nsa_shard *get() const noexcept { return shard_.get(); }

  // The pieces of a rank, in the order of its local tokens.
  std::vector<nsa_piece> pieces(int32_t rank) const {
    const nsa_piece *first = nullptr;
    int32_t count = 0;
    check(nsa_shard_pieces(get(), rank, &first, &count));
    return std::vector<nsa_piece>(first, first + count);
  }
  // The tokens of a rank; of -1 the largest number of any, for problem.max_tokens.
  int64_t tokens(int32_t rank = -1) const noexcept { return nsa_shard_tokens(get(), rank); }
  int32_t max_pieces() const noexcept { return nsa_shard_max_pieces(get()); }

private:
  std::unique_ptr<nsa_shard, detail::destroy_shard> shard_;
};

// Owns an nsa_comm, one rank's end.
class comm {
public:
  // Takes over a handle that nsa_comm_nccl, nsa_comm_nccl_init or nsa_comm_loopback made.
  explicit comm(nsa_comm *made) noexcept : comm_(made) {}
  comm(const context &ctx, const nsa_comm_ops &ops, const nsa_comm_options *options = nullptr) {
    nsa_comm *made = nullptr;
    check(nsa_comm_create(ctx.get(), &ops, options, &made));
    comm_.reset(made);
  }

  nsa_comm *get() const noexcept { return comm_.get(); }

  // Compares with the other ranks what is about to run. Every rank calls it.
  void agree(const plan &plan, const shard &shard, int32_t timeout_ms = 0) const {
    const nsa_plan *one = plan.get();
    check(nsa_comm_agree(get(), &one, 1, shard.get(), timeout_ms));
  }
  void wait(nsa_stream stream, int32_t timeout_ms = 0) const {
    check(nsa_comm_wait(get(), stream, timeout_ms));
  }

private:
  std::unique_ptr<nsa_comm, detail::destroy_comm> comm_;
};

} // namespace nsa

#endif // NSA_NSA_HPP
