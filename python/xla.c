/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A run of a plan as a custom call of XLA, for JAX. What a call computes is in its attributes and never
 * an address, because compiled programs are kept on disk and run in other processes:
 *
 *   config   the configuration as text       dtype    of the model, NSA_BF16 ...
 *   problem  i64 [11]: max_tokens, max_kv_tokens, max_kv_len, max_seqs, selection, overlap, max_q_len,
 *            page_size, kv_dtype, cmp_dtype, index_lse
 *   run      i64 [3]: call, num_seqs, branches
 *   offsets  i32: the place in nsapy_frame of every operand, then of every result
 *   scale    of the softmax, f32
 *
 * A cache that an append writes into is an operand and a result in the same memory: XLA is told of the
 * alias, and the place of the result counts. The last result is the workspace. Contexts and plans are
 * kept by these and the device, until the process ends.
 */
#include "frame.h"
#include <xla/ffi/api/c_api.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROBLEM = 11 };

typedef struct kept_context {
  struct kept_context *next;
  nsa_ctx *ctx;
  int32_t ordinal, dtype; /* ordinal -1: the CPU device */
  char config[];
} kept_context;

typedef struct kept_plan {
  struct kept_plan *next;
  const kept_context *context;
  int32_t op;
  int64_t problem[PROBLEM];
  nsa_plan *plan;
  uint32_t align;
  uint64_t bytes;
} kept_plan;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kept_context *contexts;
static kept_plan *plans;

NSA_API int32_t nsapy_xla_workspace(const char *config, size_t config_size, int32_t dtype,
                                    int32_t ordinal, int32_t call, const int64_t *problem,
                                    uint64_t *bytes);
NSA_API XLA_FFI_Error *nsapy_xla_cpu(XLA_FFI_CallFrame *frame);
NSA_API XLA_FFI_Error *nsapy_xla_cuda(XLA_FFI_CallFrame *frame);

/* ---- contexts and plans; with the lock */

static nsa_status find_context(const char *config, size_t size, int32_t dtype, int32_t ordinal,
                               const kept_context **out) {
  static const char *const names[] = { [NSA_F16] = "fp16", [NSA_BF16] = "bf16", [NSA_F32] = "f32" };
  for (kept_context *c = contexts; c; c = c->next)
    if (c->dtype == dtype && c->ordinal == ordinal && strlen(c->config) == size &&
        !memcmp(c->config, config, size)) {
      *out = c;
      return NSA_OK;
    }
  char device[32] = "cpu", override[32];
  if (dtype < NSA_F16 || dtype > NSA_F32) return NSA_E_ARG;
  snprintf(override, sizeof override, "model.dtype=%s", names[dtype]);
  if (ordinal >= 0) snprintf(device, sizeof device, "cuda:%d", ordinal);
  nsa_options options = NSA_OPTIONS_INIT;
  kept_context *made = calloc(1, sizeof *made + size + 1);
  if (!made) return NSA_E_NOMEM;
  options.device = device;
  options.yaml_text = config;
  options.yaml_len = size;
  options.overrides = (const char *const[]){ override, NULL };
  nsa_status status = nsa_create(NULL, &options, &made->ctx);
  if (status) {
    free(made);
    return status;
  }
  memcpy(made->config, config, size);
  made->dtype = dtype;
  made->ordinal = ordinal;
  made->next = contexts;
  *out = contexts = made;
  return NSA_OK;
}

static nsa_status find_plan(const kept_context *context, int32_t op, const int64_t *problem,
                            const kept_plan **out) {
  for (kept_plan *p = plans; p; p = p->next)
    if (p->context == context && p->op == op && !memcmp(p->problem, problem, sizeof p->problem)) {
      *out = p;
      return NSA_OK;
    }
  nsa_problem request = NSA_PROBLEM_INIT;
  nsa_caps caps = NSA_CAPS_INIT;
  kept_plan *made = calloc(1, sizeof *made);
  if (!made) return NSA_E_NOMEM;
  request.op = op;
  request.max_tokens = problem[0];
  request.max_kv_tokens = problem[1];
  request.max_kv_len = problem[2];
  request.max_seqs = (int32_t)problem[3];
  request.selection = (int32_t)problem[4];
  request.overlap = (int32_t)problem[5];
  request.max_q_len = (int32_t)problem[6];
  request.page_size = (int32_t)problem[7];
  request.kv_dtype = (int32_t)problem[8];
  request.cmp_dtype = (int32_t)problem[9];
  request.index_lse = (int32_t)problem[10];
  nsa_status status = nsa_plan_create(context->ctx, &request, NULL, NULL, &made->plan);
  if (!status) status = nsa_plan_caps(made->plan, &caps);
  if (status) {
    nsa_plan_destroy(made->plan);
    free(made);
    return status;
  }
  memcpy(made->problem, problem, sizeof made->problem);
  made->context = context;
  made->op = op;
  made->align = caps.workspace_align;
  made->bytes = caps.workspace_bytes;
  made->next = plans;
  *out = plans = made;
  return NSA_OK;
}

static int32_t op_of(int32_t call) {
  switch (call) {
  case NSAPY_BACKWARD: return NSA_OP_BACKWARD;
  case NSAPY_APPEND: return NSA_OP_APPEND;
  case NSAPY_DECODE: return NSA_OP_DECODE;
  case NSAPY_PREFILL: return NSA_OP_PREFILL;
  case NSAPY_INDEX_KL: return NSA_OP_INDEX_KL;
  default: return NSA_OP_FORWARD;
  }
}

static nsa_status find(const char *config, size_t size, int32_t dtype, int32_t ordinal,
                       int32_t call, const int64_t *problem, const kept_plan **out) {
  const kept_context *context = NULL;
  pthread_mutex_lock(&lock);
  nsa_status status = find_context(config, size, dtype, ordinal, &context);
  if (!status) status = find_plan(context, op_of(call), problem, out);
  pthread_mutex_unlock(&lock);
  return status;
}

/* Makes the plan, and says how many bytes of workspace a run needs at any address. */
int32_t nsapy_xla_workspace(const char *config, size_t config_size, int32_t dtype, int32_t ordinal,
                            int32_t call, const int64_t *problem, uint64_t *bytes) {
  const kept_plan *plan = NULL;
  nsa_status status = find(config, config_size, dtype, ordinal, call, problem, &plan);
  *bytes = status ? 0 : plan->bytes + plan->align;
  return status;
}

/* ---- the call */

static XLA_FFI_Error *fail(XLA_FFI_CallFrame *frame, XLA_FFI_Error_Code code, const char *message) {
  XLA_FFI_Error_Create_Args args = { XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL, message, code };
  return frame->api->XLA_FFI_Error_Create(&args);
}

static XLA_FFI_Error *fail_status(XLA_FFI_CallFrame *frame, nsa_status status) {
  const char *message = nsa_last_error();
  XLA_FFI_Error_Code code = status == NSA_E_ARG || status == NSA_E_CONFIG
                                ? XLA_FFI_Error_Code_INVALID_ARGUMENT
                            : status == NSA_E_UNSUPPORTED ? XLA_FFI_Error_Code_UNIMPLEMENTED
                            : status == NSA_E_NOMEM       ? XLA_FFI_Error_Code_RESOURCE_EXHAUSTED
                                                          : XLA_FFI_Error_Code_INTERNAL;
  return fail(frame, code, *message ? message : nsa_status_text(status));
}

static int32_t dtype_of(XLA_FFI_DataType type) {
  switch (type) {
  case XLA_FFI_DataType_F16: return NSA_F16;
  case XLA_FFI_DataType_BF16: return NSA_BF16;
  case XLA_FFI_DataType_F32: return NSA_F32;
  case XLA_FFI_DataType_S32: return NSA_I32;
  case XLA_FFI_DataType_S64: return NSA_I64;
  case XLA_FFI_DataType_F8E4M3FN: return NSA_E4M3;
  default: return 0; /* the library refuses it by name */
  }
}

static void view(const XLA_FFI_Buffer *from, nsa_tensor *to) {
  int64_t next = 1;
  to->data = from->data;
  to->ndim = (int32_t)from->rank;
  to->dtype = dtype_of(from->dtype);
  for (int64_t i = from->rank - 1; i >= 0; i--) {
    if (i < NSA_MAX_DIMS) to->shape[i] = from->dims[i], to->stride[i] = next;
    next *= from->dims[i];
  }
}

/* JAX has 64-bit integers only on request, so slot_mapping comes as i32 [T, 2]: low and high words. */
static void join_words(nsa_tensor *t) {
  if (t->dtype != NSA_I32 || t->ndim != 2 || t->shape[1] != 2) return;
  t->dtype = NSA_I64;
  t->ndim = 1;
  t->stride[0] = 1;
}

typedef struct attributes {
  const XLA_FFI_ByteSpan *config;
  const XLA_FFI_Array *problem, *run, *offsets;
  int64_t dtype;
  float scale;
} attributes;

static bool read_attributes(const XLA_FFI_Attrs *attrs, attributes *out) {
  bool has_dtype = false, has_scale = false;
  *out = (attributes){ 0 };
  for (int64_t i = 0; i < attrs->size; i++) {
    const XLA_FFI_ByteSpan *name = attrs->names[i];
    const void *value = attrs->attrs[i];
    const XLA_FFI_Scalar *scalar = value;
#define IS(text, kind)                                                                             \
  (name->len == sizeof text - 1 && !memcmp(name->ptr, text, sizeof text - 1) &&                    \
   attrs->types[i] == XLA_FFI_AttrType_##kind)
    if (IS("config", STRING)) out->config = value;
    if (IS("problem", ARRAY)) out->problem = value;
    if (IS("run", ARRAY)) out->run = value;
    if (IS("offsets", ARRAY)) out->offsets = value;
    if (IS("dtype", SCALAR) && scalar->dtype == XLA_FFI_DataType_S64)
      out->dtype = *(const int64_t *)scalar->value, has_dtype = true;
    if (IS("scale", SCALAR) && scalar->dtype == XLA_FFI_DataType_F32)
      out->scale = *(const float *)scalar->value, has_scale = true;
#undef IS
  }
  return out->config && out->problem && out->problem->dtype == XLA_FFI_DataType_S64 &&
         out->problem->size == PROBLEM && out->run && out->run->dtype == XLA_FFI_DataType_S64 &&
         out->run->size == 3 && out->offsets && out->offsets->dtype == XLA_FFI_DataType_S32 &&
         has_dtype && has_scale;
}

/* Answers the question that XLA asks when a handler is registered. */
static bool answer_metadata(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Extension_Base *extension = frame->extension_start;
  for (; extension; extension = extension->next) {
    if (extension->type != XLA_FFI_Extension_Metadata) continue;
    XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)extension)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    metadata->traits = XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
    return true;
  }
  return false;
}

static XLA_FFI_Error *execute(XLA_FFI_CallFrame *frame, bool gpu) {
  attributes a;
  XLA_FFI_Stream_Get_Args stream = { XLA_FFI_Stream_Get_Args_STRUCT_SIZE, NULL, frame->ctx, NULL };
  XLA_FFI_DeviceOrdinal_Get_Args device = { XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, NULL,
                                            frame->ctx, -1 };
  const kept_plan *plan = NULL;
  XLA_FFI_Error *error = NULL;
  if (answer_metadata(frame)) return NULL;
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return NULL;
  if (!read_attributes(&frame->attrs, &a))
    return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                "libnsa: attributes of another version");
  if ((int64_t)a.offsets->size != frame->args.size + frame->rets.size)
    return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, "libnsa: operands of another version");
  if (gpu && (error = frame->api->XLA_FFI_Stream_Get(&stream))) return error;
  if (gpu && (error = frame->api->XLA_FFI_DeviceOrdinal_Get(&device))) return error;
  const int64_t *what = a.run->data;
  nsa_status status =
      find(a.config->ptr, a.config->len, (int32_t)a.dtype, gpu ? device.device_ordinal : -1,
           (int32_t)what[0], a.problem->data, &plan);
  if (status) return fail_status(frame, status);
  nsapy_frame f = { .io = NSA_IO_INIT,
                    .grads = NSA_GRADS_INIT,
                    .batch = NSA_BATCH_INIT,
                    .exec = NSA_EXEC_INIT,
                    .index_grads = NSA_INDEX_GRADS_INIT };
  const nsapy_run_args args = { .call = (int32_t)what[0],
                                .num_seqs = (int32_t)what[1],
                                .branches = (uint32_t)what[2],
                                .scale = a.scale };
  const int32_t *offsets = a.offsets->data;
  for (int64_t i = 0; i < frame->args.size + frame->rets.size; i++) {
    const XLA_FFI_Buffer *buffer =
        i < frame->args.size ? frame->args.args[i] : frame->rets.rets[i - frame->args.size];
    if (offsets[i] == NSAPY_WORKSPACE)
      nsapy_set_workspace(buffer->data, (uint64_t)buffer->dims[0], plan->align, &f.exec);
    else if (offsets[i] >= 0 && offsets[i] <= (int32_t)(sizeof f - sizeof(nsa_tensor)))
      view(buffer, (nsa_tensor *)((char *)&f + offsets[i]));
  }
  join_words(&f.batch.slot_mapping);
  f.io.softmax_scale = args.scale;
  f.batch.num_seqs = args.num_seqs;
  f.exec.branches = args.branches;
  f.exec.stream = stream.stream;
  status = nsapy_call(&args, plan->plan, &f);
  return status ? fail_status(frame, status) : NULL;
}

XLA_FFI_Error *nsapy_xla_cpu(XLA_FFI_CallFrame *frame) { return execute(frame, false); }
XLA_FFI_Error *nsapy_xla_cuda(XLA_FFI_CallFrame *frame) { return execute(frame, true); }
