/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Written by generate.sh from include/nsa: do not edit.
 */
pub const NSA_VERSION_MAJOR: i32 = 0;
pub const NSA_VERSION_MINOR: i32 = 2;
pub const NSA_VERSION_PATCH: i32 = 0;
pub const NSA_NONE: i32 = -1;
pub const NSA_MAX_DIMS: i32 = 5;
pub const NSA_MAX_DECODE_LEN: i32 = 16;
pub const NSA_MAX_RANKS: i32 = 64;
pub const NSA_NCCL_ID_BYTES: i32 = 128;
pub type nsa_status = i32;
pub const NSA_OK: i32 = 0;
pub const NSA_E_ARG: i32 = 1;
pub const NSA_E_CONFIG: i32 = 2;
pub const NSA_E_UNSUPPORTED: i32 = 3;
pub const NSA_E_NO_DRIVER: i32 = 4;
pub const NSA_E_NO_DEVICE: i32 = 5;
pub const NSA_E_NO_COMPILER: i32 = 6;
pub const NSA_E_COMPILE: i32 = 7;
pub const NSA_E_CUDA: i32 = 8;
pub const NSA_E_NOMEM: i32 = 9;
pub const NSA_E_WORKSPACE: i32 = 10;
pub const NSA_E_CACHE: i32 = 11;
pub const NSA_E_NOT_PREPARED: i32 = 12;
pub const NSA_E_CANCELLED: i32 = 13;
pub const NSA_E_VERIFY: i32 = 14;
pub const NSA_E_VERSION: i32 = 15;
pub const NSA_E_NO_CUBLASLT: i32 = 16;
pub const NSA_E_IO: i32 = 17;
pub const NSA_E_FORKED: i32 = 18;
pub const NSA_E_RANKS: i32 = 19;
pub const NSA_E_INTERNAL: i32 = 99;
extern "C" {
    pub fn nsa_status_name(status: nsa_status) -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn nsa_status_text(status: nsa_status) -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn nsa_last_error() -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn nsa_last_trace() -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn nsa_version() -> u32;
}
extern "C" {
    pub fn nsa_build_info() -> *const ::std::os::raw::c_char;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type nsa_stream = *mut CUstream_st;
pub const NSA_F16: i32 = 1;
pub const NSA_BF16: i32 = 2;
pub const NSA_F32: i32 = 3;
pub const NSA_I32: i32 = 4;
pub const NSA_I64: i32 = 5;
pub const NSA_E4M3: i32 = 6;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_tensor {
    pub data: *mut ::std::os::raw::c_void,
    pub shape: [i64; 5usize],
    pub stride: [i64; 5usize],
    pub ndim: i32,
    pub dtype: i32,
}
pub const NSA_LOG_OFF: i32 = 0;
pub const NSA_LOG_ERROR: i32 = 1;
pub const NSA_LOG_WARN: i32 = 2;
pub const NSA_LOG_INFO: i32 = 3;
pub const NSA_LOG_DEBUG: i32 = 4;
pub const NSA_LOG_TRACE: i32 = 5;
pub type nsa_log_fn = ::std::option::Option<
    unsafe extern "C" fn(
        user: *mut ::std::os::raw::c_void,
        level: i32,
        component: *const ::std::os::raw::c_char,
        text: *const ::std::os::raw::c_char,
    ),
>;
pub type nsa_progress_fn = ::std::option::Option<
    unsafe extern "C" fn(
        user: *mut ::std::os::raw::c_void,
        done: i64,
        total: i64,
        what: *const ::std::os::raw::c_char,
    ) -> i32,
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_ctx {
    _unused: [u8; 0],
}
pub const NSA_PHI_MEAN: i32 = 1;
pub const NSA_PHI_LINEAR: i32 = 2;
pub const NSA_PHI_MLP: i32 = 3;
pub const NSA_PHI_EXTERNAL: i32 = 4;
pub const NSA_PHI_NONE: i32 = 5;
pub const NSA_ACT_RELU: i32 = 1;
pub const NSA_ACT_SILU: i32 = 2;
pub const NSA_ACT_GELU: i32 = 3;
pub const NSA_GATE_WEIGHTS: i32 = 1;
pub const NSA_GATE_LOGITS: i32 = 2;
pub const NSA_GATE_MLP: i32 = 3;
pub const NSA_GATE_NONE: i32 = 4;
pub const NSA_BY_COMPRESSED: i32 = 1;
pub const NSA_BY_INDEX: i32 = 2;
pub const NSA_POOL_SUM: i32 = 1;
pub const NSA_POOL_MAX: i32 = 2;
pub const NSA_KV_PER_BRANCH: i32 = 1;
pub const NSA_KV_SHARED: i32 = 2;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_model {
    pub struct_size: u32,
    pub heads: i32,
    pub kv_heads: i32,
    pub head_dim_qk: i32,
    pub head_dim_v: i32,
    pub dtype: i32,
    pub compress_block: i32,
    pub compress_stride: i32,
    pub phi: i32,
    pub phi_hidden: i32,
    pub phi_activation: i32,
    pub select_block: i32,
    pub select_count: i32,
    pub select_init: i32,
    pub select_local: i32,
    pub window: i32,
    pub gate: i32,
    pub gate_channels: i32,
    pub gate_hidden: i32,
    pub gate_activation: i32,
    pub kv_sharing: i32,
    pub compress_output: i32,
    pub select_pool: i32,
    pub normalizer_block: i32,
    pub normalizer_stride: i32,
    pub select_by: i32,
    pub index_heads: i32,
    pub index_dim: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_options {
    pub struct_size: u32,
    pub log_level: i32,
    pub model: *const nsa_model,
    pub device: *const ::std::os::raw::c_char,
    pub arch: *const ::std::os::raw::c_char,
    pub yaml_text: *const ::std::os::raw::c_char,
    pub yaml_len: usize,
    pub overrides: *const *const ::std::os::raw::c_char,
    pub log: nsa_log_fn,
    pub log_user: *mut ::std::os::raw::c_void,
}
extern "C" {
    pub fn nsa_create(
        yaml_path: *const ::std::os::raw::c_char,
        options: *const nsa_options,
        out: *mut *mut nsa_ctx,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_destroy(ctx: *mut nsa_ctx);
}
extern "C" {
    pub fn nsa_config_dump(
        ctx: *const nsa_ctx,
        with_origin: i32,
        buf: *mut ::std::os::raw::c_char,
        size: usize,
    ) -> usize;
}
extern "C" {
    pub fn nsa_config_check(
        yaml: *const ::std::os::raw::c_char,
        len: usize,
        name: *const ::std::os::raw::c_char,
        diag: *mut ::std::os::raw::c_char,
        size: usize,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_report(ctx: *mut nsa_ctx, buf: *mut ::std::os::raw::c_char, size: usize) -> usize;
}
pub const NSA_OP_FORWARD: i32 = 1;
pub const NSA_OP_DENSE: i32 = 2;
pub const NSA_OP_PREFILL: i32 = 3;
pub const NSA_OP_DECODE: i32 = 4;
pub const NSA_OP_APPEND: i32 = 5;
pub const NSA_OP_BACKWARD: i32 = 6;
pub const NSA_OP_INDEX_KL: i32 = 7;
pub const NSA_SELECT_TOPN: i32 = 1;
pub const NSA_SELECT_BLOCKS: i32 = 2;
pub const NSA_SELECT_RANGES: i32 = 3;
pub const NSA_SELECT_ALL: i32 = 4;
pub const NSA_OVERLAP_LOW: i32 = 1;
pub const NSA_OVERLAP_HIGH: i32 = 2;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_problem {
    pub struct_size: u32,
    pub op: i32,
    pub max_tokens: i64,
    pub max_kv_tokens: i64,
    pub max_kv_len: i64,
    pub max_seqs: i32,
    pub max_q_len: i32,
    pub page_size: i32,
    pub window_ring: i32,
    pub selection: i32,
    pub overlap: i32,
    pub max_probe_rows: i64,
    pub kv_dtype: i32,
    pub cmp_dtype: i32,
    pub index_lse: i32,
    pub ranks: i32,
    pub max_pieces: i32,
    pub unit_tokens: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_caps {
    pub struct_size: u32,
    pub supported: i32,
    pub missing_kernels: i32,
    pub workspace_align: u32,
    pub workspace_bytes: u64,
    pub variants: [::std::os::raw::c_char; 512usize],
}
extern "C" {
    pub fn nsa_query(ctx: *mut nsa_ctx, problem: *const nsa_problem, caps: *mut nsa_caps) -> nsa_status;
}
extern "C" {
    pub fn nsa_explain(
        ctx: *mut nsa_ctx,
        problem: *const nsa_problem,
        buf: *mut ::std::os::raw::c_char,
        size: usize,
    ) -> usize;
}
extern "C" {
    pub fn nsa_problem_string(
        ctx: *mut nsa_ctx,
        problem: *const nsa_problem,
        buf: *mut ::std::os::raw::c_char,
        size: usize,
    ) -> usize;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_plan {
    _unused: [u8; 0],
}
extern "C" {
    pub fn nsa_plan_create(
        ctx: *mut nsa_ctx,
        problem: *const nsa_problem,
        progress: nsa_progress_fn,
        user: *mut ::std::os::raw::c_void,
        out: *mut *mut nsa_plan,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_prepare(
        ctx: *mut nsa_ctx,
        problems: *const nsa_problem,
        count: usize,
        progress: nsa_progress_fn,
        user: *mut ::std::os::raw::c_void,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_plan_caps(plan: *const nsa_plan, caps: *mut nsa_caps) -> nsa_status;
}
extern "C" {
    pub fn nsa_plan_destroy(plan: *mut nsa_plan);
}
pub const NSA_CMP: i32 = 0;
pub const NSA_SEL: i32 = 1;
pub const NSA_WIN: i32 = 2;
pub const NSA_BRANCHES: i32 = 3;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_comm {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_exec {
    pub struct_size: u32,
    pub branches: u32,
    pub workspace: *mut ::std::os::raw::c_void,
    pub workspace_bytes: u64,
    pub stream: nsa_stream,
    pub comm: *mut nsa_comm,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_shard {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_batch {
    pub struct_size: u32,
    pub num_seqs: i32,
    pub cu_q: nsa_tensor,
    pub cu_kv: nsa_tensor,
    pub cu_cmp: nsa_tensor,
    pub kv_len: nsa_tensor,
    pub block_table: nsa_tensor,
    pub page_indptr: nsa_tensor,
    pub page_indices: nsa_tensor,
    pub slots: nsa_tensor,
    pub slot_mapping: nsa_tensor,
    pub shard: *const nsa_shard,
    pub entry_table: nsa_tensor,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_kv {
    pub k: [nsa_tensor; 3usize],
    pub v: [nsa_tensor; 3usize],
    pub k_cmp: nsa_tensor,
    pub v_cmp: nsa_tensor,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_phi_side {
    pub pe: nsa_tensor,
    pub w: nsa_tensor,
    pub w1: nsa_tensor,
    pub b1: nsa_tensor,
    pub w2: nsa_tensor,
    pub b2: nsa_tensor,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_phi {
    pub k: nsa_phi_side,
    pub v: nsa_phi_side,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_gate {
    pub value: nsa_tensor,
    pub x: nsa_tensor,
    pub w1: nsa_tensor,
    pub b1: nsa_tensor,
    pub w2: nsa_tensor,
    pub b2: nsa_tensor,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_io {
    pub struct_size: u32,
    pub softmax_scale: f32,
    pub q: nsa_tensor,
    pub o: nsa_tensor,
    pub kv: nsa_kv,
    pub new_kv: nsa_kv,
    pub phi: nsa_phi,
    pub gate: nsa_gate,
    pub block_idx: nsa_tensor,
    pub ranges: nsa_tensor,
    pub importance: nsa_tensor,
    pub o_branch: [nsa_tensor; 3usize],
    pub lse: [nsa_tensor; 3usize],
    pub probe_rows: nsa_tensor,
    pub probe_importance: nsa_tensor,
    pub kv_reads: nsa_tensor,
    pub k_scale: [nsa_tensor; 3usize],
    pub v_scale: [nsa_tensor; 3usize],
    pub k_cmp_scale: nsa_tensor,
    pub v_cmp_scale: nsa_tensor,
    pub k_norm: nsa_tensor,
    pub index_q: nsa_tensor,
    pub k_idx: nsa_tensor,
    pub new_k_idx: nsa_tensor,
    pub k_idx_scale: nsa_tensor,
    pub index_lse: nsa_tensor,
}
extern "C" {
    pub fn nsa_forward(
        plan: *const nsa_plan,
        exec: *const nsa_exec,
        batch: *const nsa_batch,
        io: *const nsa_io,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_dense(
        plan: *const nsa_plan,
        exec: *const nsa_exec,
        batch: *const nsa_batch,
        io: *const nsa_io,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_compress(
        plan: *const nsa_plan,
        exec: *const nsa_exec,
        batch: *const nsa_batch,
        io: *const nsa_io,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_select(
        plan: *const nsa_plan,
        exec: *const nsa_exec,
        batch: *const nsa_batch,
        io: *const nsa_io,
    ) -> nsa_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_grads {
    pub struct_size: u32,
    pub accumulate: u32,
    pub d_o: nsa_tensor,
    pub d_q: nsa_tensor,
    pub d_kv: nsa_kv,
    pub d_phi: nsa_phi,
    pub d_gate: nsa_gate,
}
extern "C" {
    pub fn nsa_backward(
        plan: *const nsa_plan,
        exec: *const nsa_exec,
        batch: *const nsa_batch,
        io: *const nsa_io,
        grads: *const nsa_grads,
    ) -> nsa_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_index_grads {
    pub struct_size: u32,
    pub accumulate: u32,
    pub coefficient: f64,
    pub loss: nsa_tensor,
    pub d_index_q: nsa_tensor,
    pub d_k_idx: nsa_tensor,
}
extern "C" {
    pub fn nsa_index_kl(
        plan: *const nsa_plan,
        exec: *const nsa_exec,
        batch: *const nsa_batch,
        io: *const nsa_io,
        grads: *const nsa_index_grads,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_kv_page_bytes(ctx: *mut nsa_ctx, problem: *const nsa_problem, bytes: *mut u64) -> nsa_status;
}
extern "C" {
    pub fn nsa_kv_append(
        plan: *const nsa_plan,
        exec: *const nsa_exec,
        batch: *const nsa_batch,
        io: *const nsa_io,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_decode(
        plan: *const nsa_plan,
        exec: *const nsa_exec,
        batch: *const nsa_batch,
        io: *const nsa_io,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_prefill(
        plan: *const nsa_plan,
        exec: *const nsa_exec,
        batch: *const nsa_batch,
        io: *const nsa_io,
    ) -> nsa_status;
}
pub const NSA_SHARD_ZIGZAG: i32 = 1;
pub const NSA_SHARD_CONTIGUOUS: i32 = 2;
pub const NSA_SHARD_GIVEN: i32 = 3;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_piece {
    pub rank: i32,
    pub sequence: i32,
    pub begin: i64,
    pub length: i64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_shard_options {
    pub struct_size: u32,
    pub layout: i32,
    pub ranks: i32,
    pub num_seqs: i32,
    pub lengths: *const i64,
    pub alignment: i64,
    pub given: *const nsa_piece,
    pub given_count: i64,
}
extern "C" {
    pub fn nsa_shard_create(
        ctx: *mut nsa_ctx,
        options: *const nsa_shard_options,
        shard: *mut *mut nsa_shard,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_shard_pieces(
        shard: *const nsa_shard,
        rank: i32,
        pieces: *mut *const nsa_piece,
        count: *mut i32,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_shard_tokens(shard: *const nsa_shard, rank: i32) -> i64;
}
extern "C" {
    pub fn nsa_shard_max_pieces(shard: *const nsa_shard) -> i32;
}
extern "C" {
    pub fn nsa_shard_destroy(shard: *mut nsa_shard);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_part {
    pub data: *mut ::std::os::raw::c_void,
    pub bytes: u64,
    pub rank: i32,
}
pub const NSA_COMM_CAPTURES: i32 = 1;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_comm_ops {
    pub struct_size: u32,
    pub rank: i32,
    pub size: i32,
    pub host_ranks: i32,
    pub flags: u32,
    pub reserved: u32,
    pub user: *mut ::std::os::raw::c_void,
    pub exchange: ::std::option::Option<
        unsafe extern "C" fn(
            user: *mut ::std::os::raw::c_void,
            send: *const nsa_part,
            send_count: i32,
            recv: *const nsa_part,
            recv_count: i32,
            stream: nsa_stream,
        ) -> nsa_status,
    >,
    pub all_gather: ::std::option::Option<
        unsafe extern "C" fn(
            user: *mut ::std::os::raw::c_void,
            send: *const ::std::os::raw::c_void,
            recv: *mut ::std::os::raw::c_void,
            bytes: u64,
            stream: nsa_stream,
        ) -> nsa_status,
    >,
    pub poll: ::std::option::Option<unsafe extern "C" fn(user: *mut ::std::os::raw::c_void) -> nsa_status>,
    pub abort: ::std::option::Option<unsafe extern "C" fn(user: *mut ::std::os::raw::c_void) -> nsa_status>,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_comm_options {
    pub struct_size: u32,
    pub timeout_ms: i32,
    pub host_ranks: i32,
    pub peer_bytes: i32,
    pub overlap_sms: i32,
    pub copy_bytes: i64,
}
extern "C" {
    pub fn nsa_comm_create(
        ctx: *mut nsa_ctx,
        ops: *const nsa_comm_ops,
        options: *const nsa_comm_options,
        comm: *mut *mut nsa_comm,
    ) -> nsa_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclComm {
    _unused: [u8; 0],
}
extern "C" {
    pub fn nsa_comm_nccl(
        ctx: *mut nsa_ctx,
        nccl: *mut ncclComm,
        options: *const nsa_comm_options,
        comm: *mut *mut nsa_comm,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_comm_nccl_id(ctx: *mut nsa_ctx, id: *mut ::std::os::raw::c_char) -> nsa_status;
}
extern "C" {
    pub fn nsa_comm_nccl_init(
        ctx: *mut nsa_ctx,
        id: *const ::std::os::raw::c_char,
        rank: i32,
        size: i32,
        options: *const nsa_comm_options,
        comm: *mut *mut nsa_comm,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_comm_loopback(
        ctx: *mut nsa_ctx,
        size: i32,
        options: *const nsa_comm_options,
        comms: *mut *mut nsa_comm,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_comm_agree(
        comm: *mut nsa_comm,
        plans: *const *const nsa_plan,
        count: usize,
        shard: *const nsa_shard,
        timeout_ms: i32,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_comm_check(comm: *mut nsa_comm) -> nsa_status;
}
extern "C" {
    pub fn nsa_comm_wait(comm: *mut nsa_comm, stream: nsa_stream, timeout_ms: i32) -> nsa_status;
}
extern "C" {
    pub fn nsa_comm_destroy(comm: *mut nsa_comm);
}
pub const NSA_TUNE_HEURISTIC: i32 = 1;
pub const NSA_TUNE_QUICK: i32 = 2;
pub const NSA_TUNE_NORMAL: i32 = 3;
pub const NSA_TUNE_EXHAUSTIVE: i32 = 4;
pub const NSA_TUNE_PROBLEM: i32 = 1;
pub const NSA_TUNE_PLANNED: i32 = 2;
pub const NSA_TUNE_TIMED: i32 = 3;
pub const NSA_TUNE_REFUSED: i32 = 4;
pub const NSA_TUNE_WRONG: i32 = 5;
pub const NSA_TUNE_CHOSEN: i32 = 6;
pub const NSA_TUNE_BASELINE: i32 = 7;
pub const NSA_TUNE_DONE: i32 = 8;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_tune_event {
    pub struct_size: u32,
    pub kind: i32,
    pub problem: *const ::std::os::raw::c_char,
    pub tokens: i64,
    pub stage: *const ::std::os::raw::c_char,
    pub candidate: *const ::std::os::raw::c_char,
    pub ms: f64,
    pub spread: f64,
    pub gain: f64,
    pub note: *const ::std::os::raw::c_char,
}
pub type nsa_tune_event_fn = ::std::option::Option<
    unsafe extern "C" fn(user: *mut ::std::os::raw::c_void, event: *const nsa_tune_event),
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct nsa_tune_options {
    pub struct_size: u32,
    pub level: i32,
    pub budget_s: f64,
    pub fresh: i32,
    pub dry_run: i32,
    pub progress: nsa_progress_fn,
    pub event: nsa_tune_event_fn,
    pub user: *mut ::std::os::raw::c_void,
}
extern "C" {
    pub fn nsa_tune(
        ctx: *mut nsa_ctx,
        problems: *const nsa_problem,
        count: usize,
        options: *const nsa_tune_options,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_records_export(ctx: *mut nsa_ctx, buf: *mut ::std::os::raw::c_char, size: usize) -> usize;
}
extern "C" {
    pub fn nsa_records_import(
        ctx: *mut nsa_ctx,
        text: *const ::std::os::raw::c_char,
        size: usize,
    ) -> nsa_status;
}
extern "C" {
    pub fn nsa_records_reload(ctx: *mut nsa_ctx) -> nsa_status;
}
extern "C" {
    pub fn nsa_records_digest(ctx: *mut nsa_ctx, out: *mut u8) -> nsa_status;
}
