# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The C API of libnsa for ctypes. Written by python/gen_abi.py from include/nsa: do not edit."""
import ctypes as C

NSA_OK = 0
NSA_E_ARG = 1
NSA_E_CONFIG = 2
NSA_E_UNSUPPORTED = 3
NSA_E_NO_DRIVER = 4
NSA_E_NO_DEVICE = 5
NSA_E_NO_COMPILER = 6
NSA_E_COMPILE = 7
NSA_E_CUDA = 8
NSA_E_NOMEM = 9
NSA_E_WORKSPACE = 10
NSA_E_CACHE = 11
NSA_E_NOT_PREPARED = 12
NSA_E_CANCELLED = 13
NSA_E_VERIFY = 14
NSA_E_VERSION = 15
NSA_E_NO_CUBLASLT = 16
NSA_E_IO = 17
NSA_E_FORKED = 18
NSA_E_RANKS = 19
NSA_E_INTERNAL = 99
NSA_F16 = 1
NSA_BF16 = 2
NSA_F32 = 3
NSA_I32 = 4
NSA_I64 = 5
NSA_E4M3 = 6
NSA_LOG_OFF = 0
NSA_LOG_ERROR = 1
NSA_LOG_WARN = 2
NSA_LOG_INFO = 3
NSA_LOG_DEBUG = 4
NSA_LOG_TRACE = 5
NSA_PHI_MEAN = 1
NSA_PHI_LINEAR = 2
NSA_PHI_MLP = 3
NSA_PHI_EXTERNAL = 4
NSA_PHI_NONE = 5
NSA_ACT_RELU = 1
NSA_ACT_SILU = 2
NSA_ACT_GELU = 3
NSA_GATE_WEIGHTS = 1
NSA_GATE_LOGITS = 2
NSA_GATE_MLP = 3
NSA_GATE_NONE = 4
NSA_BY_COMPRESSED = 1
NSA_BY_INDEX = 2
NSA_POOL_SUM = 1
NSA_POOL_MAX = 2
NSA_KV_PER_BRANCH = 1
NSA_KV_SHARED = 2
NSA_OP_FORWARD = 1
NSA_OP_DENSE = 2
NSA_OP_PREFILL = 3
NSA_OP_DECODE = 4
NSA_OP_APPEND = 5
NSA_OP_BACKWARD = 6
NSA_OP_INDEX_KL = 7
NSA_SELECT_TOPN = 1
NSA_SELECT_BLOCKS = 2
NSA_SELECT_RANGES = 3
NSA_SELECT_ALL = 4
NSA_OVERLAP_LOW = 1
NSA_OVERLAP_HIGH = 2
NSA_CMP = 0
NSA_SEL = 1
NSA_WIN = 2
NSA_BRANCHES = 3
NSA_SHARD_ZIGZAG = 1
NSA_SHARD_CONTIGUOUS = 2
NSA_SHARD_GIVEN = 3
NSA_COMM_CAPTURES = 1
NSA_TUNE_HEURISTIC = 1
NSA_TUNE_QUICK = 2
NSA_TUNE_NORMAL = 3
NSA_TUNE_EXHAUSTIVE = 4
NSA_TUNE_PROBLEM = 1
NSA_TUNE_PLANNED = 2
NSA_TUNE_TIMED = 3
NSA_TUNE_REFUSED = 4
NSA_TUNE_WRONG = 5
NSA_TUNE_CHOSEN = 6
NSA_TUNE_BASELINE = 7
NSA_TUNE_DONE = 8


class nsa_tensor(C.Structure):
    _fields_ = [
        ("data", C.c_void_p),
        ("shape", C.c_int64 * 5),
        ("stride", C.c_int64 * 5),
        ("ndim", C.c_int32),
        ("dtype", C.c_int32),
    ]

nsa_log_fn = C.CFUNCTYPE(None, C.c_void_p, C.c_int32, C.c_char_p, C.c_char_p)

nsa_progress_fn = C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_int64, C.c_int64, C.c_char_p)


class nsa_model(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("heads", C.c_int32),
        ("kv_heads", C.c_int32),
        ("head_dim_qk", C.c_int32),
        ("head_dim_v", C.c_int32),
        ("dtype", C.c_int32),
        ("compress_block", C.c_int32),
        ("compress_stride", C.c_int32),
        ("phi", C.c_int32),
        ("phi_hidden", C.c_int32),
        ("phi_activation", C.c_int32),
        ("select_block", C.c_int32),
        ("select_count", C.c_int32),
        ("select_init", C.c_int32),
        ("select_local", C.c_int32),
        ("window", C.c_int32),
        ("gate", C.c_int32),
        ("gate_channels", C.c_int32),
        ("gate_hidden", C.c_int32),
        ("gate_activation", C.c_int32),
        ("kv_sharing", C.c_int32),
        ("compress_output", C.c_int32),
        ("select_pool", C.c_int32),
        ("normalizer_block", C.c_int32),
        ("normalizer_stride", C.c_int32),
        ("select_by", C.c_int32),
        ("index_heads", C.c_int32),
        ("index_dim", C.c_int32),
    ]


class nsa_options(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("log_level", C.c_int32),
        ("model", C.POINTER(nsa_model)),
        ("device", C.c_char_p),
        ("arch", C.c_char_p),
        ("yaml_text", C.c_char_p),
        ("yaml_len", C.c_size_t),
        ("overrides", C.POINTER(C.c_char_p)),
        ("log", nsa_log_fn),
        ("log_user", C.c_void_p),
    ]


class nsa_problem(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("op", C.c_int32),
        ("max_tokens", C.c_int64),
        ("max_kv_tokens", C.c_int64),
        ("max_kv_len", C.c_int64),
        ("max_seqs", C.c_int32),
        ("max_q_len", C.c_int32),
        ("page_size", C.c_int32),
        ("window_ring", C.c_int32),
        ("selection", C.c_int32),
        ("overlap", C.c_int32),
        ("max_probe_rows", C.c_int64),
        ("kv_dtype", C.c_int32),
        ("cmp_dtype", C.c_int32),
        ("index_lse", C.c_int32),
        ("ranks", C.c_int32),
        ("max_pieces", C.c_int32),
        ("unit_tokens", C.c_int32),
    ]


class nsa_caps(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("supported", C.c_int32),
        ("missing_kernels", C.c_int32),
        ("workspace_align", C.c_uint32),
        ("workspace_bytes", C.c_uint64),
        ("variants", C.c_char * 512),
    ]


class nsa_exec(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("branches", C.c_uint32),
        ("workspace", C.c_void_p),
        ("workspace_bytes", C.c_uint64),
        ("stream", C.c_void_p),
        ("comm", C.c_void_p),
    ]


class nsa_batch(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("num_seqs", C.c_int32),
        ("cu_q", nsa_tensor),
        ("cu_kv", nsa_tensor),
        ("cu_cmp", nsa_tensor),
        ("kv_len", nsa_tensor),
        ("block_table", nsa_tensor),
        ("page_indptr", nsa_tensor),
        ("page_indices", nsa_tensor),
        ("slots", nsa_tensor),
        ("slot_mapping", nsa_tensor),
        ("shard", C.c_void_p),
        ("entry_table", nsa_tensor),
    ]


class nsa_kv(C.Structure):
    _fields_ = [
        ("k", nsa_tensor * 3),
        ("v", nsa_tensor * 3),
        ("k_cmp", nsa_tensor),
        ("v_cmp", nsa_tensor),
    ]


class nsa_phi_side(C.Structure):
    _fields_ = [
        ("pe", nsa_tensor),
        ("w", nsa_tensor),
        ("w1", nsa_tensor),
        ("b1", nsa_tensor),
        ("w2", nsa_tensor),
        ("b2", nsa_tensor),
    ]


class nsa_phi(C.Structure):
    _fields_ = [
        ("k", nsa_phi_side),
        ("v", nsa_phi_side),
    ]


class nsa_gate(C.Structure):
    _fields_ = [
        ("value", nsa_tensor),
        ("x", nsa_tensor),
        ("w1", nsa_tensor),
        ("b1", nsa_tensor),
        ("w2", nsa_tensor),
        ("b2", nsa_tensor),
    ]


class nsa_io(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("softmax_scale", C.c_float),
        ("q", nsa_tensor),
        ("o", nsa_tensor),
        ("kv", nsa_kv),
        ("new_kv", nsa_kv),
        ("phi", nsa_phi),
        ("gate", nsa_gate),
        ("block_idx", nsa_tensor),
        ("ranges", nsa_tensor),
        ("importance", nsa_tensor),
        ("o_branch", nsa_tensor * 3),
        ("lse", nsa_tensor * 3),
        ("probe_rows", nsa_tensor),
        ("probe_importance", nsa_tensor),
        ("kv_reads", nsa_tensor),
        ("k_scale", nsa_tensor * 3),
        ("v_scale", nsa_tensor * 3),
        ("k_cmp_scale", nsa_tensor),
        ("v_cmp_scale", nsa_tensor),
        ("k_norm", nsa_tensor),
        ("index_q", nsa_tensor),
        ("k_idx", nsa_tensor),
        ("new_k_idx", nsa_tensor),
        ("k_idx_scale", nsa_tensor),
        ("index_lse", nsa_tensor),
    ]


class nsa_grads(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("accumulate", C.c_uint32),
        ("d_o", nsa_tensor),
        ("d_q", nsa_tensor),
        ("d_kv", nsa_kv),
        ("d_phi", nsa_phi),
        ("d_gate", nsa_gate),
    ]


class nsa_index_grads(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("accumulate", C.c_uint32),
        ("coefficient", C.c_double),
        ("loss", nsa_tensor),
        ("d_index_q", nsa_tensor),
        ("d_k_idx", nsa_tensor),
    ]


class nsa_piece(C.Structure):
    _fields_ = [
        ("rank", C.c_int32),
        ("sequence", C.c_int32),
        ("begin", C.c_int64),
        ("length", C.c_int64),
    ]


class nsa_shard_options(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("layout", C.c_int32),
        ("ranks", C.c_int32),
        ("num_seqs", C.c_int32),
        ("lengths", C.POINTER(C.c_int64)),
        ("alignment", C.c_int64),
        ("given", C.POINTER(nsa_piece)),
        ("given_count", C.c_int64),
    ]


class nsa_part(C.Structure):
    _fields_ = [
        ("data", C.c_void_p),
        ("bytes", C.c_uint64),
        ("rank", C.c_int32),
    ]


class nsa_comm_ops(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("rank", C.c_int32),
        ("size", C.c_int32),
        ("host_ranks", C.c_int32),
        ("flags", C.c_uint32),
        ("reserved", C.c_uint32),
        ("user", C.c_void_p),
        ("exchange", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.POINTER(nsa_part), C.c_int32, C.POINTER(nsa_part), C.c_int32, C.c_void_p)),
        ("all_gather", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p, C.c_uint64, C.c_void_p)),
        ("poll", C.CFUNCTYPE(C.c_int32, C.c_void_p)),
        ("abort", C.CFUNCTYPE(C.c_int32, C.c_void_p)),
    ]


class nsa_comm_options(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("timeout_ms", C.c_int32),
        ("host_ranks", C.c_int32),
        ("peer_bytes", C.c_int32),
        ("overlap_sms", C.c_int32),
        ("copy_bytes", C.c_int64),
    ]


class nsa_tune_event(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("kind", C.c_int32),
        ("problem", C.c_char_p),
        ("tokens", C.c_int64),
        ("stage", C.c_char_p),
        ("candidate", C.c_char_p),
        ("ms", C.c_double),
        ("spread", C.c_double),
        ("gain", C.c_double),
        ("note", C.c_char_p),
    ]

nsa_tune_event_fn = C.CFUNCTYPE(None, C.c_void_p, C.POINTER(nsa_tune_event))


class nsa_tune_options(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("level", C.c_int32),
        ("budget_s", C.c_double),
        ("fresh", C.c_int32),
        ("dry_run", C.c_int32),
        ("progress", nsa_progress_fn),
        ("event", nsa_tune_event_fn),
        ("user", C.c_void_p),
    ]


# name: (result, parameters)
FUNCTIONS = {
    "nsa_status_name": (C.c_char_p, [C.c_int32]),
    "nsa_status_text": (C.c_char_p, [C.c_int32]),
    "nsa_last_error": (C.c_char_p, []),
    "nsa_last_trace": (C.c_char_p, []),
    "nsa_version": (C.c_uint32, []),
    "nsa_build_info": (C.c_char_p, []),
    "nsa_create": (C.c_int32, [C.c_char_p, C.POINTER(nsa_options), C.POINTER(C.c_void_p)]),
    "nsa_destroy": (None, [C.c_void_p]),
    "nsa_config_dump": (C.c_size_t, [C.c_void_p, C.c_int32, C.c_char_p, C.c_size_t]),
    "nsa_config_check": (C.c_int32, [C.c_char_p, C.c_size_t, C.c_char_p, C.c_char_p, C.c_size_t]),
    "nsa_report": (C.c_size_t, [C.c_void_p, C.c_char_p, C.c_size_t]),
    "nsa_query": (C.c_int32, [C.c_void_p, C.POINTER(nsa_problem), C.POINTER(nsa_caps)]),
    "nsa_explain": (C.c_size_t, [C.c_void_p, C.POINTER(nsa_problem), C.c_char_p, C.c_size_t]),
    "nsa_problem_string": (C.c_size_t, [C.c_void_p, C.POINTER(nsa_problem), C.c_char_p, C.c_size_t]),
    "nsa_plan_create": (C.c_int32, [C.c_void_p, C.POINTER(nsa_problem), nsa_progress_fn, C.c_void_p, C.POINTER(C.c_void_p)]),
    "nsa_prepare": (C.c_int32, [C.c_void_p, C.POINTER(nsa_problem), C.c_size_t, nsa_progress_fn, C.c_void_p]),
    "nsa_plan_caps": (C.c_int32, [C.c_void_p, C.POINTER(nsa_caps)]),
    "nsa_plan_destroy": (None, [C.c_void_p]),
    "nsa_forward": (C.c_int32, [C.c_void_p, C.POINTER(nsa_exec), C.POINTER(nsa_batch), C.POINTER(nsa_io)]),
    "nsa_dense": (C.c_int32, [C.c_void_p, C.POINTER(nsa_exec), C.POINTER(nsa_batch), C.POINTER(nsa_io)]),
    "nsa_compress": (C.c_int32, [C.c_void_p, C.POINTER(nsa_exec), C.POINTER(nsa_batch), C.POINTER(nsa_io)]),
    "nsa_select": (C.c_int32, [C.c_void_p, C.POINTER(nsa_exec), C.POINTER(nsa_batch), C.POINTER(nsa_io)]),
    "nsa_backward": (C.c_int32, [C.c_void_p, C.POINTER(nsa_exec), C.POINTER(nsa_batch), C.POINTER(nsa_io), C.POINTER(nsa_grads)]),
    "nsa_index_kl": (C.c_int32, [C.c_void_p, C.POINTER(nsa_exec), C.POINTER(nsa_batch), C.POINTER(nsa_io), C.POINTER(nsa_index_grads)]),
    "nsa_kv_page_bytes": (C.c_int32, [C.c_void_p, C.POINTER(nsa_problem), C.POINTER(C.c_uint64)]),
    "nsa_kv_append": (C.c_int32, [C.c_void_p, C.POINTER(nsa_exec), C.POINTER(nsa_batch), C.POINTER(nsa_io)]),
    "nsa_decode": (C.c_int32, [C.c_void_p, C.POINTER(nsa_exec), C.POINTER(nsa_batch), C.POINTER(nsa_io)]),
    "nsa_prefill": (C.c_int32, [C.c_void_p, C.POINTER(nsa_exec), C.POINTER(nsa_batch), C.POINTER(nsa_io)]),
    "nsa_shard_create": (C.c_int32, [C.c_void_p, C.POINTER(nsa_shard_options), C.POINTER(C.c_void_p)]),
    "nsa_shard_pieces": (C.c_int32, [C.c_void_p, C.c_int32, C.POINTER(C.POINTER(nsa_piece)), C.POINTER(C.c_int32)]),
    "nsa_shard_tokens": (C.c_int64, [C.c_void_p, C.c_int32]),
    "nsa_shard_max_pieces": (C.c_int32, [C.c_void_p]),
    "nsa_shard_destroy": (None, [C.c_void_p]),
    "nsa_comm_create": (C.c_int32, [C.c_void_p, C.POINTER(nsa_comm_ops), C.POINTER(nsa_comm_options), C.POINTER(C.c_void_p)]),
    "nsa_comm_nccl": (C.c_int32, [C.c_void_p, C.c_void_p, C.POINTER(nsa_comm_options), C.POINTER(C.c_void_p)]),
    "nsa_comm_nccl_id": (C.c_int32, [C.c_void_p, C.POINTER(C.c_char)]),
    "nsa_comm_nccl_init": (C.c_int32, [C.c_void_p, C.POINTER(C.c_char), C.c_int32, C.c_int32, C.POINTER(nsa_comm_options), C.POINTER(C.c_void_p)]),
    "nsa_comm_loopback": (C.c_int32, [C.c_void_p, C.c_int32, C.POINTER(nsa_comm_options), C.POINTER(C.c_void_p)]),
    "nsa_comm_agree": (C.c_int32, [C.c_void_p, C.POINTER(C.c_void_p), C.c_size_t, C.c_void_p, C.c_int32]),
    "nsa_comm_check": (C.c_int32, [C.c_void_p]),
    "nsa_comm_wait": (C.c_int32, [C.c_void_p, C.c_void_p, C.c_int32]),
    "nsa_comm_destroy": (None, [C.c_void_p]),
    "nsa_tune": (C.c_int32, [C.c_void_p, C.POINTER(nsa_problem), C.c_size_t, C.POINTER(nsa_tune_options)]),
    "nsa_records_export": (C.c_size_t, [C.c_void_p, C.c_char_p, C.c_size_t]),
    "nsa_records_import": (C.c_int32, [C.c_void_p, C.c_char_p, C.c_size_t]),
    "nsa_records_reload": (C.c_int32, [C.c_void_p]),
    "nsa_records_digest": (C.c_int32, [C.c_void_p, C.POINTER(C.c_uint8)]),
}
