#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Makes a library for this machine of a kernel's source: engine.hpp runs it.

  translate.py SOURCE ARCH OUT_DIR     prints the library's path; errors go to stderr

SOURCE holds unit.cu and the headers, as emulator.c writes them: the line "NAME BYTES" and the text, for each. The
preprocessed source stays as it is but for variables in shared memory and assembly: every asm statement becomes a call
of the function of instructions.hpp that INSTRUCTIONS names. An unknown instruction is an error that shows its text.

OUT_DIR keeps libraries, by the hash of the architecture, the engine and the files that the unit includes. The engine is a
precompiled header there.
"""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
COMPILER = os.environ.get("EMULATOR_CXX", "clang++")
FLAGS = ["-std=c++17", "-fdelayed-template-parsing", "-O1", "-fPIC", "-w", "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-mf16c",
         "-mavx2", "-ffp-contract=off", "-ftemplate-depth=2048", "-fconstexpr-steps=100000000"]

# Patterns of a statement's whole text, and the function; "" for what is without effect here.
INSTRUCTIONS = [
    (r"$", ""),
    (r"cvt\.rn\.bf16x2\.f32 ", "cvt_bf16x2"),
    (r"cvt\.rn\.f16x2\.f32 ", "cvt_f16x2"),
    (r"\{\.reg \.b16 c; cvt\.rn\.satfinite\.e4m3x2\.f32 c, %1, %2; cvt\.u32\.u16 %0, c;\}", "cvt_e4m3x2"),
    (r"\{\.reg \.b16 l, h; mov\.b32 \{l, h\}, %1; cvt\.rn\.f16x2\.e4m3x2 %0, l;\}", "cvt_f16x2_e4m3x2"),
    (r"\{\.reg \.b16 l, h; mov\.b32 \{l, h\}, %1; cvt\.rn\.f16x2\.e4m3x2 %0, h;\}", "cvt_f16x2_e4m3x2_high"),
    (r"prmt\.b32 ", "prmt"),
    (r"max\.u16x2 ", "max_u16x2"),
    (r"mul\.rn\.f16x2 ", "mul_f16x2"),
    (r"fma\.rn\.bf16x2 ", "fma_bf16x2"),
    (r"\{\.reg \.b16 l, h; mov\.b32 \{l, h\}, %1; cvt\.f32\.f16 %0, l;\}", "f16_low"),
    (r"\{\.reg \.b16 l, h; mov\.b32 \{l, h\}, %1; cvt\.f32\.f16 %0, h;\}", "f16_high"),
    (r"ex2\.approx\.ftz\.f32 ", "ex2"),
    (r"lg2\.approx\.ftz\.f32 ", "lg2"),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 ", "ldmatrix_x4"),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared\.b16 ", "ldmatrix_x4_trans"),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x2\.shared\.b16 ", "ldmatrix_x2"),
    (r"stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 ", "stmatrix_x4"),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32 ", "mma_bf16"),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32 ", "mma_f16"),
    (r"cp\.async\.cg\.shared\.global \[%0\], \[%1\], 16, %2;", "cp_async"),
    (r"cp\.async\.cg\.shared\.global\.L2::cache_hint \[%0\], \[%1\], 16, %2, %3;", "cp_async_by"),
    (r"cp\.async\.commit_group;", "copies_commit"),
    (r"cp\.async\.wait_group ", "cp_async_wait"),
    (r"createpolicy\.", "createpolicy"),
    (r"ld\.shared\.(v[24]\.)?b32 ", "ld_shared"),
    (r"st\.shared\.(v[24]\.)?b32 ", "st_shared"),
    (r"st\.global\.L1::no_allocate\.v4\.b32 ", "st_global"),
    (r"st\.global\.L2::cache_hint\.f32 ", "st_global_by"),
    (r"ld\.global\.cs\.v2\.b32 ", "ld_global"),
    (r"discard\.global\.L2 \[%0\], 128;", "discard"),
    (r"prefetch\.", ""),
    (r"mbarrier\.init\.shared\.b64 ", "mbarrier_init"),
    (r"\{\.reg \.b64 state; mbarrier\.arrive\.shared\.b64 ", "mbarrier_arrive_one"),
    (r"\{\.reg \.b64 state; mbarrier\.arrive\.expect_tx\.shared\.b64 ", "mbarrier_expect"),
    (r"cp\.async\.mbarrier\.arrive\.noinc\.shared\.b64 ", "mbarrier_arrive_after_copies"),
    (r"\{\.reg \.pred p; mbarrier\.(try|test)_wait\.parity\.", "mbarrier_test"),
    (r"fence\.", ""),
    (r"st\.release\.cta\.shared\.s32 ", "st_release"),
    (r"ld\.acquire\.cta\.shared\.s32 ", "ld_acquire"),
    (r"bar\.sync ", "bar_sync"),
    (r"bar\.arrive ", "bar_arrive"),
    (r"griddepcontrol\.", ""),
    (r"cp\.async\.bulk\.tensor\.3d\.", "tma_3d"),
    (r"cp\.async\.bulk\.tensor\.4d\.", "tma_4d"),
    (r"cp\.async\.bulk\.tensor\.5d\.\S+ \[%0\], \[%1, \{%2, 0, 0, 0, %3\}\], ", "tma_5d_interleaved"),
    (r"cp\.async\.bulk\.shared::cluster\.global\.mbarrier", "bulk_load"),
    (r"cp\.async\.bulk\.global\.shared::cta\.bulk_group ", "bulk_store"),
    (r"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group\.add\.f32 ", "bulk_add"),
    (r"cp\.async\.bulk\.(commit|wait)_group", ""),
    (r"st\.release\.gpu\.global\.s32 ", "st_release_global"),
    (r"ld\.acquire\.gpu\.global\.s32 ", "ld_acquire_global"),
    (r"st\.release\.sys\.global\.s32 ", "st_release_system"),
    (r"ld\.acquire\.sys\.global\.s32 ", "ld_acquire_system"),
    (r"mov\.u64 %0, %%globaltimer;", "global_timer"),
    (r"mov\.u32 %0, %%cluster_ctarank;", "cluster_ctarank"),
    (r"barrier\.cluster\.arrive\.", "cluster_arrive"),
    (r"barrier\.cluster\.wait\.", "cluster_wait"),
    (r"mapa\.shared::cluster\.u32 ", "mapa"),
    (r"st\.async\.\S+\.v2\.f32 ", "st_async_v2"),
    (r"st\.async\.\S+\.v4\.f32 ", "st_async_v4"),
    (r"st\.async\.", "st_async"),
    (r"wgmma\.(fence|commit_group|wait_group)\.", ""),
    (r"setmaxnreg\.", ""),
    (r"mov\.b32 %0, %1;", "mov_b32"),
]
WGMMA = re.compile(r"\{\.reg \.pred p; setp\.ne\.b32 p, %\d+, 0; wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(bf16|f16)\.\S+ "
                   r"\{[^{}]*\}, (\{)?")


def closing(text, begin):
    """The index behind the bracket that closes the one at `begin`; strings are skipped."""
    depth, i = 0, begin
    while i < len(text):
        c = text[i]
        if c in "\"'":
            i += 1
            while text[i] != c:
                i += 2 if text[i] == "\\" else 1
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    raise ValueError("a bracket is not closed")


def split(text, separator):
    """Splits at separators that stand in no bracket and in no string."""
    parts, begin, i = [], 0, 0
    while i < len(text):
        c = text[i]
        if c == '"':
            i += 1
            while text[i] != '"':
                i += 2 if text[i] == "\\" else 1
        elif c in "([{":
            i = closing(text, i) - 1
        elif c == separator:
            parts.append(text[begin:i])
            begin = i + 1
        i += 1
    return [*parts, text[begin:]]


def operand(text):
    """The expression of `"constraint"(expression)`."""
    text = text.strip()
    begin = text.index("(", text.index('"', 1))
    return text[begin:closing(text, begin)]


def call_of(body):
    """The call that stands for asm(body)."""
    sections = split(body, ":")
    words = " ".join("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', sections[0])).split())
    operands = [operand(part) for section in sections[1:3] for part in split(section, ",") if part.strip()]
    found = WGMMA.match(words)
    if found:
        name, kind = "wgmma_registers" if found[3] else "wgmma_shared", f"value_{found[2]}"
        inputs = operands[int(found[1]) // 2:]
        return f"emulator::{name}<{found[1]}, emulator::{kind}>(&{operands[0]}, {', '.join(inputs)})"
    for pattern, function in INSTRUCTIONS:
        if re.match(pattern, words):
            return f"emulator::{function}({', '.join(operands)})" if function else "(void)0"
    raise ValueError(f"instructions.hpp has nothing for: {words}")


def replace_assembly(text):
    out, at = [], 0
    for found in re.finditer(r"\basm\b(?:\s+volatile\b)?\s*\(", text):
        if found.start() < at:
            continue
        end = closing(text, found.end() - 1)
        out += [text[at:found.start()], call_of(text[found.end():end - 1])]
        at = end
    return "".join([*out, text[at:]])


def replace_shared(text):
    """Variables in shared memory: the array without a size is the dynamic part, the others lie behind it."""
    text = re.sub(r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w\s]+?)\s+(\w+)\[\]\s*;",
                  r"\1 *const \2 = (\1 *)emulator::dynamic_shared();", text)
    return re.sub(r"__shared__\s+(?:__align__\(\d+\)\s+)?([^;]+?)\s+(\w+)((?:\[[^;]*\])?)\s*;",
                  r"typedef \1 emulated_\2 \3; static u32 emulated_at_\2; "
                  r"auto &\2 = *(emulated_\2 *)emulator::static_shared(&emulated_at_\2, sizeof(emulated_\2), alignof(emulated_\2));",
                  text)


def read_files(path):
    data, files, at = pathlib.Path(path).read_bytes(), {}, 0
    while at < len(data):
        end = data.index(b"\n", at)
        name, count = data[at:end].decode().rsplit(" ", 1)
        at = end + 1 + int(count)
        files[name] = data[end + 1:at].decode()
    return files


def with_includes(files, name, seen):
    """The text of a file with those that it includes in their places, each where it is named first."""
    seen.add(name)

    def included(found):
        other = os.path.normpath(os.path.join(os.path.dirname(name), found[1]))
        other = other if other in files else found[1]
        return "" if other in seen else with_includes(files, other, seen)

    return re.sub(r'^#\s*include\s*[<"]([^>"]+)[>"].*|^#\s*pragma once\b.*', lambda found: included(found) if found[1] else "", files[name],
                  flags=re.MULTILINE)


def run(*command, text):
    done = subprocess.run([COMPILER, *command], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        if os.environ.get("EMULATOR_KEEP") and text:
            pathlib.Path(os.environ["EMULATOR_KEEP"]).write_text(text, encoding="utf-8")
        sys.exit(done.stderr[:20000])
    return done.stdout


def make(path, make_it):
    """Makes a file unless it is there; processes that make it at once make the same."""
    if not path.exists():
        made = path.with_name(f"{path.name}.{os.getpid()}")
        make_it(made)
        made.replace(path)


def translate(source, arch):
    text = run("-x", "c++", "-E", "-P", "-std=c++17", f"-D__CUDA_ARCH__={arch}0", "-D__CUDACC__", "-", text=source)
    text = replace_shared(replace_assembly(text))
    text = text.replace("1.0f / 0.0f", "__builtin_inff()")  # no constant for this compiler
    text = re.sub(r"#\s*pragma unroll.*", "", text)  # takes longer to compile than it saves
    entry = re.search(r"__global__[^;{]*?\b(\w+)\s*\(\s*const\s+__grid_constant__", text)[1]
    cluster = re.search(r"__cluster_dims__\((.*?),\s*1,\s*1\)", text)
    return f'''{text}
template <class P> struct EmulatedParams;
template <class P> struct EmulatedParams<void (*)(P)> {{ typedef P Type; }};
typedef typename EmulatedParams<decltype(&{entry})>::Type EmulatedParamsOf;
static void emulated_body(const void *params) {{ {entry}(*(const EmulatedParamsOf *)params); }}
extern "C" {{
extern const u32 emulator_params_bytes;
const u32 emulator_params_bytes = sizeof(EmulatedParamsOf);
void emulator_launch(const void *params, u32 grid_x, u32 grid_y, int threads, u32 shared_bytes, void *stacks, emulator_pause_fn pause) {{
  emulator::run("{entry}", emulated_body, params, grid_x, grid_y, threads, shared_bytes, {cluster[1] if cluster else 1}, stacks, pause);
}}
}}
'''


def main():
    source, arch, out = with_includes(read_files(sys.argv[1]), "unit.cu", set()), sys.argv[2], pathlib.Path(sys.argv[3])
    flags = [*FLAGS, *os.environ.get("EMULATOR_FLAGS", "").split()]
    compiler = os.stat(shutil.which(COMPILER) or sys.exit(f"translate.py: there is no {COMPILER}"))
    engine = hashlib.sha256(" ".join([COMPILER, f"{compiler.st_size} {compiler.st_mtime_ns}", *flags]).encode())
    for path in sorted(HERE.glob("*.[hp]*")):
        engine.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")

    def place(text, ending):
        digest = engine.copy()
        digest.update(text.encode())
        return out / f"{digest.hexdigest()[:32]}{ending}"

    def make_library(to):
        header, unit = place("", ".pch"), translate(source, arch)
        make(header, lambda to: run(*flags, "-x", "c++-header", HERE / "instructions.hpp", "-o", to, text=None))
        # Names tell contents, so times of files may change.
        run(*flags, "-shared", "-Xclang", "-fno-validate-pch", "-include-pch", header, "-x", "c++", "-", "-o", to, text=unit)

    library = place(f"{arch} {source}", ".so")
    try:
        make(library, make_library)
    except ValueError as error:
        sys.exit(f"translate.py: {error}")
    print(library)


if __name__ == "__main__":
    main()
