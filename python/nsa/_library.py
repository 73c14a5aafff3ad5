# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The shared library, its errors, and contexts and plans that are kept for later calls."""
import ctypes as C
import os
import pathlib
import threading

from . import _abi

HERE = pathlib.Path(__file__).parent


class Error(RuntimeError):
    """A call of libnsa failed. str() is its sentence: what was wrong, where, and what to do.

    status  the number of the error, as nsa._abi has it (NSA_E_ARG ...); `name` its name
    trace   the internal functions that it passed through, for bug reports
    """

    def __init__(self, message, status=0, name="", trace=""):
        super().__init__(message)
        self.status, self.name, self.trace = status, name, trace


class ArgumentError(Error, ValueError):
    """NSA_E_ARG: a tensor's shape, stride, dtype or address, or another argument, is wrong."""


class ConfigError(Error, ValueError):
    """NSA_E_CONFIG: the configuration is invalid. The message has every diagnostic."""


class UnsupportedError(Error, NotImplementedError):
    """NSA_E_UNSUPPORTED: a valid request that no kernel can serve. The message has all reasons."""


class RanksError(Error):
    """NSA_E_RANKS: another rank failed, disagrees or does not answer. The communicator is of no more use."""


class NotPreparedError(Error):
    """NSA_E_NOT_PREPARED: a kernel would have to be compiled, and `runtime.jit` forbids it here."""


CLASSES = {_abi.NSA_E_ARG: ArgumentError, _abi.NSA_E_CONFIG: ConfigError,
           _abi.NSA_E_UNSUPPORTED: UnsupportedError, _abi.NSA_E_NOT_PREPARED: NotPreparedError,
           _abi.NSA_E_RANKS: RanksError}


class Frame(C.Structure):
    """The structs of a run, as python/shim.c has them."""
    _fields_ = [("io", _abi.nsa_io), ("grads", _abi.nsa_grads), ("batch", _abi.nsa_batch), ("exec", _abi.nsa_exec),
                ("index_grads", _abi.nsa_index_grads)]


class RunArgs(C.Structure):
    _fields_ = [("call", C.c_int32), ("num_seqs", C.c_int32), ("branches", C.c_uint32), ("accumulate", C.c_uint32),
                ("scale", C.c_float), ("workspace_align", C.c_int32),
                ("tensors", C.c_int32), ("exchange", C.c_void_p), ("plan", C.c_void_p), ("offsets", C.POINTER(C.c_int32)),
                ("comm", C.c_void_p), ("shard", C.c_void_p)]


FORWARD, DENSE, BACKWARD, APPEND, DECODE, PREFILL, INDEX_KL = range(7)
NAMES = "nsa_forward", "nsa_dense", "nsa_backward", "nsa_kv_append", "nsa_decode", "nsa_prefill", "nsa_index_kl"
WORKSPACE, UNUSED = -1, -2
PYTHON_ERROR, NO_EXCHANGE = -1, -2
DONE = 1


def find_library():
    """NSA_PYTHON_LIBRARY, for development, or the file beside this module."""
    return os.environ.get("NSA_PYTHON_LIBRARY") or str(HERE / "libnsa_python.so")


def load():
    path = find_library()
    try:
        lib, shim = C.CDLL(path), C.PyDLL(path)
    except OSError as error:
        raise ImportError(f"libnsa's library cannot be opened: {error}. Install the package `libnsa` again, or set "
                          "NSA_PYTHON_LIBRARY to libnsa_python.so of a build with -Dpython=true") from error
    for name, (result, parameters) in _abi.FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, parameters
    shim.nsapy_frame_size.restype, shim.nsapy_frame_size.argtypes = C.c_size_t, []
    shim.nsapy_run.restype = C.c_int32
    shim.nsapy_run.argtypes = [C.c_void_p, C.py_object]
    if shim.nsapy_frame_size() != C.sizeof(Frame) + C.sizeof(RunArgs):
        raise ImportError(f"{path} is of another version than the Python modules in {HERE}")
    return lib, shim


lib, shim = load()


def last_error(status):
    """The exception for a status, with the texts of this thread's last failure."""
    message, trace = lib.nsa_last_error().decode("utf-8", "replace"), lib.nsa_last_trace().decode("utf-8", "replace")
    name = lib.nsa_status_name(status).decode()
    return CLASSES.get(status, Error)(message or lib.nsa_status_text(status).decode(), status, name, trace)


def check(status):
    if status:
        raise last_error(status)


def text_of(function, *args):
    """The text that a function with `buf` and `size` writes; an empty one is an error."""
    size = function(*args, None, 0)
    buffer = C.create_string_buffer(size + 1)
    while (needed := function(*args, buffer, len(buffer))) >= len(buffer):
        buffer = C.create_string_buffer(needed + 1)
    return buffer.value.decode()


class Plan:
    """A plan, and what a run of it needs to know."""

    def __init__(self, context, **fields):
        self.context = context  # which the plan outlives in C, but not its error texts
        problem = _abi.nsa_problem(struct_size=C.sizeof(_abi.nsa_problem), **fields)
        handle, caps = C.c_void_p(), _abi.nsa_caps(struct_size=C.sizeof(_abi.nsa_caps))
        check(lib.nsa_plan_create(context.handle, C.byref(problem), _abi.nsa_progress_fn(), None, C.byref(handle)))
        self.handle = handle
        check(lib.nsa_plan_caps(handle, C.byref(caps)))
        self.align, self.bytes = caps.workspace_align, caps.workspace_bytes
        self.room = self.bytes + self.align  # of a workspace that may begin anywhere
        self.variants = caps.variants.decode()

    def __del__(self):
        handle, self.handle = getattr(self, "handle", None), None
        if handle and lib is not None:
            lib.nsa_plan_destroy(handle)


class Context:
    """A configuration, as JSON or YAML text, on a device: "cpu", "cuda:1"."""

    def __init__(self, text, device, overrides=()):
        raw = text.encode()
        names = (C.c_char_p * (len(overrides) + 1))(*[o.encode() for o in overrides], None)
        options = _abi.nsa_options(struct_size=C.sizeof(_abi.nsa_options), device=device.encode() if device else None,
                                   yaml_text=raw, yaml_len=len(raw), overrides=names)
        handle = C.c_void_p()
        check(lib.nsa_create(None, C.byref(options), C.byref(handle)))
        self.handle, self.plans, self.lock = handle, {}, threading.Lock()

    def plan(self, **fields):
        """The plan of a problem, made once."""
        key = tuple(sorted(fields.items()))
        plan = self.plans.get(key)
        if plan is None:
            with self.lock:
                plan = self.plans.get(key)
                if plan is None:
                    plan = self.plans[key] = Plan(self, **fields)
        return plan

    def config(self, with_origin=False):
        return text_of(lib.nsa_config_dump, self.handle, int(with_origin))

    def __del__(self):
        handle, self.handle = getattr(self, "handle", None), None
        if handle and lib is not None:
            self.plans.clear()
            lib.nsa_destroy(handle)


contexts = {}
contexts_lock = threading.Lock()


def context(text, device, overrides=()):
    """The context of a configuration on a device, made once in a process."""
    key = text, device, tuple(overrides)
    found = contexts.get(key)
    if found is None:
        with contexts_lock:
            found = contexts.get(key)
            if found is None:
                found = contexts[key] = Context(text, device, overrides)
    return found


def forget_contexts():
    """In a child of fork(): the parent's contexts are refused there, so the child makes its own."""
    global contexts_lock
    contexts_lock = threading.Lock()
    kept.append(dict(contexts))  # never freed: their destructors belong to the parent
    contexts.clear()


kept = []
os.register_at_fork(after_in_child=forget_contexts)


def offset_of(path):
    """The byte offset in Frame of a tensor, as "io.kv.k[0]"."""
    kind, offset = Frame, 0
    for part in path.split("."):
        name, _, index = part.rstrip("]").partition("[")
        offset += getattr(kind, name).offset
        kind = dict(kind._fields_)[name]
        if index:
            kind = kind._type_
            offset += int(index) * C.sizeof(kind)
    return offset


def round_up(n):
    """A capacity of at least n: at most 12.5 % more, so that all lengths up to 128k need 81 plans."""
    if n <= 128:
        return 128
    step = 1 << (n.bit_length() - 4)
    return -(-n // step) * step


def round_up_few(n):
    """The same for numbers of sequences: 1, 2, 4, 8, then in eighths."""
    if n <= 8:
        return 1 << max(n - 1, 0).bit_length()
    step = 1 << max(n.bit_length() - 4, 0)
    return -(-n // step) * step
