# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""libnsa's C API for the Python hosts of this folder: ctypes, and tensors through DLPack."""
import ctypes as C

FORWARD, DENSE, BACKWARD = 1, 2, 6
F16, BF16, F32, I32, I64 = 1, 2, 3, 4, 5


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("shape", C.c_int64 * 5), ("stride", C.c_int64 * 5),
                ("ndim", C.c_int32), ("dtype", C.c_int32)]


class Model(C.Structure):
    """The fields of nsa_model; what is left out has its default. Enumerations as in nsa/context.h."""
    _fields_ = [("struct_size", C.c_uint32)] + [(name, C.c_int32) for name in (
        "heads", "kv_heads", "head_dim_qk", "head_dim_v", "dtype", "compress_block", "compress_stride", "phi",
        "phi_hidden", "phi_activation", "select_block", "select_count", "select_init", "select_local", "window",
        "gate", "gate_channels", "gate_hidden", "gate_activation", "kv_sharing")]


class Options(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("log_level", C.c_int32), ("model", C.POINTER(Model)),
                ("device", C.c_char_p), ("arch", C.c_char_p), ("yaml_text", C.c_char_p),
                ("yaml_len", C.c_size_t), ("overrides", C.POINTER(C.c_char_p)), ("log", C.c_void_p),
                ("log_user", C.c_void_p)]


class Problem(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("op", C.c_int32), ("max_tokens", C.c_int64),
                ("max_kv_tokens", C.c_int64), ("max_kv_len", C.c_int64), ("max_seqs", C.c_int32),
                ("max_q_len", C.c_int32), ("page_size", C.c_int32), ("window_ring", C.c_int32),
                ("selection", C.c_int32), ("overlap", C.c_int32), ("max_probe_rows", C.c_int64)]


class Caps(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("supported", C.c_int32), ("missing_kernels", C.c_int32),
                ("workspace_align", C.c_uint32), ("workspace_bytes", C.c_uint64), ("variants", C.c_char * 512)]


class Exec(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("branches", C.c_uint32), ("workspace", C.c_void_p),
                ("workspace_bytes", C.c_uint64), ("stream", C.c_void_p)]


class Batch(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("num_seqs", C.c_int32), ("cu_q", Tensor), ("cu_kv", Tensor),
                ("cu_cmp", Tensor), ("cache", Tensor * 6)]


class Kv(C.Structure):
    _fields_ = [("k", Tensor * 3), ("v", Tensor * 3), ("k_cmp", Tensor), ("v_cmp", Tensor)]


class Phi(C.Structure):
    _fields_ = [("sides", Tensor * 12)]


class Gate(C.Structure):
    _fields_ = [("value", Tensor), ("mlp", Tensor * 5)]


class Io(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("softmax_scale", C.c_float), ("q", Tensor), ("o", Tensor),
                ("kv", Kv), ("new_kv", Kv), ("phi", Phi), ("gate", Gate), ("block_idx", Tensor), ("ranges", Tensor),
                ("importance", Tensor),
                ("o_branch", Tensor * 3), ("lse", Tensor * 3), ("probe_rows", Tensor),
                ("probe_importance", Tensor), ("kv_reads", Tensor)]


class Grads(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("accumulate", C.c_uint32), ("d_o", Tensor), ("d_q", Tensor),
                ("d_kv", Kv), ("d_phi", Phi), ("d_gate", Gate)]


# ---- DLPack

class DLTensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("device_type", C.c_int32), ("device_id", C.c_int32),
                ("ndim", C.c_int32), ("code", C.c_uint8), ("bits", C.c_uint8), ("lanes", C.c_uint16),
                ("shape", C.POINTER(C.c_int64)), ("strides", C.POINTER(C.c_int64)),
                ("byte_offset", C.c_uint64)]


DTYPES = {(2, 16): F16, (4, 16): BF16, (2, 32): F32, (0, 32): I32, (0, 64): I64}  # (code, bits)

pointer_of = C.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = C.c_void_p, [C.py_object, C.c_char_p]


def describe(x):
    """The library's view of what has __dlpack__; x must outlive it."""
    capsule = x.detach().__dlpack__() if hasattr(x, "detach") else x.__dlpack__()
    source = DLTensor.from_address(pointer_of(capsule, b"dltensor"))
    t = Tensor(data=source.data + source.byte_offset if source.data else None, ndim=source.ndim,
               dtype=DTYPES[source.code, source.bits])
    for i in range(source.ndim):
        t.shape[i], t.stride[i] = source.shape[i], source.strides[i]
    return t


# ---- contexts and plans

class Error(RuntimeError):
    pass


class Library:
    """A context on a device: "cpu", "cuda:1", or None for the configuration's. `model`: fields of Model, in the
    place of a file `config`; `overrides` as in the command line tools: "model.heads=32"."""

    def __init__(self, path, config=None, model=None, device=None, overrides=()):
        self.lib = C.CDLL(path)
        self.lib.nsa_last_error.restype = C.c_char_p
        for name in "nsa_plan_destroy", "nsa_destroy":
            getattr(self.lib, name).restype, getattr(self.lib, name).argtypes = None, [C.c_void_p]
        names = (C.c_char_p * (len(overrides) + 1))(*[o.encode() for o in overrides], None)
        options = Options(struct_size=C.sizeof(Options), overrides=names,
                          device=device.encode() if device else None)
        if model:
            options.model = C.pointer(Model(struct_size=C.sizeof(Model), **model))
        self.ctx = C.c_void_p()
        self.check(self.lib.nsa_create(config.encode() if config else None, C.byref(options), C.byref(self.ctx)))

    def check(self, status):
        if status:
            raise Error(self.lib.nsa_last_error().decode())

    def close(self):
        self.lib.nsa_destroy(self.ctx)


class Plan:
    """A plan with a workspace that lies in what `empty(bytes)` makes: an object with __dlpack__."""

    def __init__(self, library, empty, **problem):
        self.library, self.lib = library, library.lib
        request = Problem(struct_size=C.sizeof(Problem), **problem)
        self.plan, caps = C.c_void_p(), Caps(struct_size=C.sizeof(Caps))
        library.check(self.lib.nsa_plan_create(library.ctx, C.byref(request), None, None, C.byref(self.plan)))
        library.check(self.lib.nsa_plan_caps(self.plan, C.byref(caps)))
        self.memory = empty(caps.workspace_bytes + caps.workspace_align)  # on the CPU any alignment
        self.workspace = -(-self.memory.data_ptr() // caps.workspace_align) * caps.workspace_align
        self.bytes, self.variants = caps.workspace_bytes, caps.variants.decode()

    def run(self, function, stream, batch, *structs):
        """Enqueues nsa_forward or nsa_backward."""
        where = Exec(struct_size=C.sizeof(Exec), workspace=self.workspace,
                     workspace_bytes=self.bytes, stream=stream)
        self.library.check(getattr(self.lib, function)(self.plan, C.byref(where), C.byref(batch) if batch else None,
                                                       *[C.byref(s) for s in structs]))

    def close(self):
        self.lib.nsa_plan_destroy(self.plan)
