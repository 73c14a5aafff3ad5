# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""What the command line tools do, for programs: reports, explanations, tuning, records."""
from __future__ import annotations

import ctypes as C
import json
from typing import Any, Callable, Optional, Sequence

from . import _abi
from ._library import Error, check, last_error, lib, text_of

OPS = dict(forward=_abi.NSA_OP_FORWARD, dense=_abi.NSA_OP_DENSE, prefill=_abi.NSA_OP_PREFILL,
           decode=_abi.NSA_OP_DECODE, append=_abi.NSA_OP_APPEND, backward=_abi.NSA_OP_BACKWARD,
           index_kl=_abi.NSA_OP_INDEX_KL)
LEVELS = dict(heuristic=_abi.NSA_TUNE_HEURISTIC, quick=_abi.NSA_TUNE_QUICK, normal=_abi.NSA_TUNE_NORMAL,
              exhaustive=_abi.NSA_TUNE_EXHAUSTIVE)


def version() -> str:
    """The version of the library, as "0.2.0"."""
    number = lib.nsa_version()
    return f"{number >> 16}.{number >> 8 & 255}.{number & 255}"


def doctor() -> dict:
    """A report on this machine: device, driver, NVRTC, cache folders, and what a run would use."""
    return json.loads(text_of(lib.nsa_report, None))


def _problem(op, fields):
    if op not in OPS:
        raise ValueError(f"op is \"{op}\"; it is one of {', '.join(OPS)}")
    names = {name for name, _ in _abi.nsa_problem._fields_} - {"struct_size", "op"}
    unknown = sorted(set(fields) - names)
    if unknown:
        raise TypeError(f"a problem has no {', '.join(unknown)}; it has {', '.join(sorted(names))}")
    return _abi.nsa_problem(struct_size=C.sizeof(_abi.nsa_problem), op=OPS[op], **fields)


def explain(config, op: str = "forward", *, device: str = "cuda:0", dtype: str = "bf16", **problem: int) -> str:
    """Why a problem would be served as it is: for each stage every variant and the reasons against it.

    problem  fields of nsa_problem: max_tokens=65536, max_seqs=1 ...
    """
    where = config.context(device, dtype)
    return text_of(lib.nsa_explain, where.handle, C.byref(_problem(op, problem)))


def tune(config, op: str = "forward", *, device: str = "cuda:0", dtype: str = "bf16", level: str = "quick",
         budget: Optional[float] = None, on_event: Optional[Callable[[dict], Any]] = None, **problem: int) -> None:
    """Times the candidates of every stage on the device and keeps the winners for later plans.

    budget    seconds for all of it [the configuration's]
    on_event  receives each event of nsa_tune_event as a dictionary; an exception in it stops the search
              after the current measurement and is raised again, and everything measured is kept
    """
    if level not in LEVELS:
        raise ValueError(f"level is \"{level}\"; it is one of {', '.join(LEVELS)}")
    caught = []

    def event(_, pointer):
        if on_event is None or caught:
            return
        fields = C.cast(pointer, C.POINTER(_abi.nsa_tune_event)).contents
        values = {name: getattr(fields, name) for name, _ in fields._fields_ if name != "struct_size"}
        try:
            on_event({n: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for n, v in values.items()})
        except BaseException as error:  # must not pass through C
            caught.append(error)

    def progress(*_):
        return 1 if caught else 0

    callbacks = _abi.nsa_progress_fn(progress), _abi.nsa_tune_event_fn(event)
    options = _abi.nsa_tune_options(struct_size=C.sizeof(_abi.nsa_tune_options), level=LEVELS[level],
                                    budget_s=budget or 0.0, progress=callbacks[0], event=callbacks[1])
    request = _problem(op, problem)
    where = config.context(device, dtype)
    status = lib.nsa_tune(where.handle, C.byref(request), 1, C.byref(options))
    where.plans.clear()  # later plans choose from the records
    if caught:
        raise caught[0]
    check(status)


def export_records(config, *, device: str = "cuda:0", dtype: str = "bf16") -> str:
    """All records of timings that this configuration finds, as one YAML text."""
    text = text_of(lib.nsa_records_export, config.context(device, dtype).handle)
    if not text:
        raise last_error(_abi.NSA_E_CACHE)
    return text


def import_records(config, text: str, *, device: str = "cuda:0", dtype: str = "bf16") -> None:
    """Adds the records of such a text, all or none."""
    raw = text.encode()
    where = config.context(device, dtype)
    check(lib.nsa_records_import(where.handle, raw, len(raw)))
    where.plans.clear()
