/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One sequence over several processes, with MPI as the transport: the table of functions that
 * nsa_comm_create takes, of sends and receives alone (docs/ranks.md).
 *
 *   mpicc ranks_mpi.c $(pkg-config --cflags --libs libnsa) -o ranks_mpi
 *   mpirun -np 2 ranks_mpi [--check] [TOKENS]      1600 tokens
 *
 * It runs on the CPU device, in float32. --check also computes all tokens on every rank, and compares
 * the bits of its rows. On GPUs the parts are device memory: an MPI that knows CUDA takes them after
 * the stream has been waited for, as `exchange` below would have to do; NCCL needs no table.
 */
#include <mpi.h>
#include <nsa/nsa.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4, KV_HEADS = 2, DIM = 32 };
enum { Q_ROW = HEADS * DIM, KV_ROW = KV_HEADS * DIM, GATE_ROW = HEADS * NSA_BRANCHES };

static void fail(const char *what) {
  fprintf(stderr, "ranks_mpi: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

static void check(nsa_status status) {
  if (status != NSA_OK) fail(nsa_last_error());
}

/* Zeros, aligned as device memory is. */
static void *take(size_t bytes) {
  size_t room = (bytes / 256 + 1) * 256;
  void *p = aligned_alloc(256, room);
  if (!p) fail("no memory");
  return memset(p, 0, room);
}

/* ---- the transport ---- */

#define MOST_BYTES (1u << 30) /* of one message: MPI counts with an int */

/* Starts the messages of one part. `at` is the next free request. */
static int start(const nsa_part *part, int sends, MPI_Request *request, int at) {
  for (uint64_t done = 0; done < part->bytes; done += MOST_BYTES) {
    uint64_t left = part->bytes - done;
    int bytes = (int)(left < MOST_BYTES ? left : MOST_BYTES);
    char *data = (char *)part->data + done;
    int status =
        sends ? MPI_Isend(data, bytes, MPI_BYTE, part->rank, 0, MPI_COMM_WORLD, &request[at])
              : MPI_Irecv(data, bytes, MPI_BYTE, part->rank, 0, MPI_COMM_WORLD, &request[at]);
    if (status != MPI_SUCCESS) return -1;
    at++;
  }
  return at;
}

static size_t messages(const nsa_part *part, int32_t count) {
  size_t sum = 0;
  for (int32_t i = 0; i < count; i++)
    sum += (size_t)((part[i].bytes + MOST_BYTES - 1) / MOST_BYTES);
  return sum;
}

/* MPI keeps the order of messages between two ranks, as the table promises. On the CPU device the bytes
 * have moved when this returns. */
static nsa_status exchange(void *user, const nsa_part *send, int32_t send_count,
                           const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  (void)user;
  (void)stream;
  size_t most = messages(send, send_count) + messages(recv, recv_count);
  MPI_Request *request = malloc((most + 1) * sizeof *request);
  if (!request) return NSA_E_NOMEM;
  int count = 0;
  for (int32_t i = 0; i < recv_count && count >= 0; i++) count = start(&recv[i], 0, request, count);
  for (int32_t i = 0; i < send_count && count >= 0; i++) count = start(&send[i], 1, request, count);
  int failed = count < 0 || MPI_Waitall(count, request, MPI_STATUSES_IGNORE) != MPI_SUCCESS;
  free(request);
  return failed ? NSA_E_RANKS : NSA_OK;
}

static nsa_comm *make_comm(nsa_ctx *ctx) {
  nsa_comm_ops ops = NSA_COMM_OPS_INIT;
  nsa_comm *comm;
  MPI_Comm_rank(MPI_COMM_WORLD, &ops.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ops.size);
  ops.exchange = exchange;
  check(nsa_comm_create(ctx, &ops, NULL, &comm));
  return comm;
}

/* ---- the run ---- */

typedef struct rows {
  int64_t tokens;
  float *q, *k, *v, *gates, *o;
} rows;

/* A number from -1 to 1 that depends on its place alone, so that every rank makes the same. */
static float number(uint64_t place) {
  place = (place + 1) * 0x9e3779b97f4a7c15u;
  place = (place ^ (place >> 30)) * 0xbf58476d1ce4e5b9u;
  place = (place ^ (place >> 27)) * 0x94d049bb133111ebu;
  return (float)((double)(place >> 11) * 0x1p-52 - 1);
}

static void fill(float *to, int64_t row, int64_t from, int width, uint64_t tensor) {
  for (int i = 0; i < width; i++)
    to[row * width + i] = number((tensor << 40) + (uint64_t)(from * width + i));
}

/* The inputs of the tokens of some pieces. */
static rows make_rows(const nsa_piece *piece, int32_t count) {
  rows r = { 0 };
  int64_t row = 0;
  for (int32_t i = 0; i < count; i++) r.tokens += piece[i].length;
  size_t tokens = (size_t)r.tokens;
  r.q = take(tokens * Q_ROW * sizeof(float));
  r.k = take(tokens * KV_ROW * sizeof(float));
  r.v = take(tokens * KV_ROW * sizeof(float));
  r.gates = take(tokens * GATE_ROW * sizeof(float));
  r.o = take(tokens * Q_ROW * sizeof(float));
  for (int32_t i = 0; i < count; i++)
    for (int64_t t = piece[i].begin; t < piece[i].begin + piece[i].length; t++, row++) {
      fill(r.q, row, t, Q_ROW, 1);
      fill(r.k, row, t, KV_ROW, 2);
      fill(r.v, row, t, KV_ROW, 3);
      fill(r.gates, row, t, GATE_ROW, 4);
    }
  return r;
}

static void free_rows(rows *r) {
  free(r->q);
  free(r->k);
  free(r->v);
  free(r->gates);
  free(r->o);
}

static nsa_tensor tensor(float *data, int64_t tokens, int64_t heads, int64_t width) {
  nsa_tensor t = { .data = data, .ndim = 3, .dtype = NSA_F32 };
  t.shape[0] = tokens, t.shape[1] = heads, t.shape[2] = width;
  t.stride[0] = heads * width, t.stride[1] = width, t.stride[2] = 1;
  return t;
}

/* The forward of `r`: over ranks, or with comm NULL here alone. */
static void forward(nsa_ctx *ctx, nsa_comm *comm, const nsa_shard *shard, int64_t all,
                    const rows *r) {
  nsa_problem problem = NSA_PROBLEM_INIT;
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_batch batch = NSA_BATCH_INIT;
  nsa_io io = NSA_IO_INIT;
  nsa_plan *plan;
  problem.max_tokens = all;
  if (comm) {
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    problem.ranks = size;
    problem.max_tokens = nsa_shard_tokens(shard, -1);
    problem.max_kv_tokens = all;
    problem.max_pieces = nsa_shard_max_pieces(shard);
  }
  check(nsa_plan_create(ctx, &problem, NULL, NULL, &plan));
  check(nsa_plan_caps(plan, &caps));
  exec.workspace = take(caps.workspace_bytes);
  exec.workspace_bytes = caps.workspace_bytes;
  io.q = tensor(r->q, r->tokens, HEADS, DIM);
  io.kv.k[0] = tensor(r->k, r->tokens, KV_HEADS, DIM);
  io.kv.v[0] = tensor(r->v, r->tokens, KV_HEADS, DIM);
  io.gate.value = tensor(r->gates, r->tokens, HEADS, NSA_BRANCHES);
  io.o = tensor(r->o, r->tokens, HEADS, DIM);
  if (comm) {
    const nsa_plan *one = plan;
    check(nsa_comm_agree(comm, &one, 1, shard, 0));
    exec.comm = comm;
    batch.shard = shard;
    check(nsa_forward(plan, &exec, &batch, &io));
    check(nsa_comm_wait(comm, NULL, 0));
  } else {
    check(nsa_forward(plan, &exec, NULL, &io));
  }
  free(exec.workspace);
  nsa_plan_destroy(plan);
}

/* Rows of this rank that have other bits than those of one rank. */
static int64_t compare(nsa_ctx *ctx, const nsa_piece *piece, int32_t count, int64_t all,
                       const rows *mine) {
  const nsa_piece whole = { 0, 0, 0, all };
  rows r = make_rows(&whole, 1);
  int64_t row = 0, wrong = 0;
  forward(ctx, NULL, NULL, all, &r);
  for (int32_t i = 0; i < count; i++)
    for (int64_t t = piece[i].begin; t < piece[i].begin + piece[i].length; t++, row++)
      wrong += memcmp(mine->o + row * Q_ROW, r.o + t * Q_ROW, Q_ROW * sizeof(float)) != 0;
  free_rows(&r);
  return wrong;
}

int main(int argc, char **argv) {
  int64_t tokens = 1600;
  int checks = 0, rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--check"))
      checks = 1;
    else if ((tokens = strtoll(argv[i], NULL, 10)) < 1)
      fail("usage: ranks_mpi [--check] [TOKENS]");
  }
  nsa_model model = { .struct_size = sizeof model, .heads = HEADS, .kv_heads = KV_HEADS };
  model.head_dim_qk = DIM;
  model.dtype = NSA_F32;
  model.gate = NSA_GATE_LOGITS;
  model.kv_sharing = NSA_KV_SHARED;
  nsa_options options = NSA_OPTIONS_INIT;
  options.model = &model;
  options.device = "cpu";
  nsa_ctx *ctx;
  check(nsa_create(NULL, &options, &ctx));
  nsa_shard_options division = NSA_SHARD_OPTIONS_INIT;
  division.ranks = size;
  division.num_seqs = 1;
  division.lengths = &tokens;
  division.alignment =
      64; /* on the CPU device any keeps the bits, and short sequences are divided */
  nsa_shard *shard;
  check(nsa_shard_create(ctx, &division, &shard));
  const nsa_piece *piece;
  int32_t count;
  check(nsa_shard_pieces(shard, rank, &piece, &count));
  rows mine = make_rows(piece, count);
  nsa_comm *comm = make_comm(ctx);
  double start = MPI_Wtime();
  forward(ctx, comm, shard, tokens, &mine);
  if (!rank)
    printf("%lld tokens on %d ranks: %.0f ms\n", (long long)tokens, size,
           1e3 * (MPI_Wtime() - start));
  long long wrong = checks ? compare(ctx, piece, count, tokens, &mine) : 0, all = 0;
  MPI_Allreduce(&wrong, &all, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (!rank && checks) printf("check: %lld rows differ from one rank's\n", all);
  nsa_comm_destroy(comm);
  nsa_shard_destroy(shard);
  nsa_destroy(ctx);
  free_rows(&mine);
  MPI_Finalize();
  return all ? 1 : 0;
}
