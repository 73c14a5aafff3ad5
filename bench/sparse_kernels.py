# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The implementations that sparse_peers.py times. A loader gives a function from data to Work, or raises ImportError
with what is missing.

vLLM and sglang are loaded file by file: their packages would import the whole engine. In the place of the few modules
that the kernels import besides stand those of `stand_ins`, with what these say on Hopper.
"""

import dataclasses
import importlib
import sys
import types
from typing import Any, Callable, Dict

VLLM = ("vllm 0.33.0 (PyPI; github.com/vllm-project/vllm, tag v0.33.0)",
        [f"vllm/models/minimax_m3/common/ops/{name}.py" for name in ("index_topk", "sparse_attn")])
SGLANG = ("sglang 0.5.23 (PyPI; github.com/sgl-project/sglang, tag v0.5.23)",
          [f"sglang/kernels/ops/attention/minimax_sparse/{name}.py" for name in (
              "common/index", "common/tile_ptr", "common/utils", "prefill/flash_with_topk_idx", "prefill/topk_sparse",
              "decode/flash_with_topk_idx", "decode/topk_sparse")])
INFLLM = ("github.com/OpenBMB/infllmv2_cuda_impl, commit f908e73, built for sm_90",
          ["infllm_v2/__init__.py", "infllm_v2/infllmv2_sparse_attention.py"])


@dataclasses.dataclass
class Work:
    """Steps of one implementation on its data, each a function of the copy; `lists`: the blocks it chose for copy 0."""
    steps: Dict[str, Callable[[int], Any]]
    lists: Any = None


def find(folder, source):
    origin, files = source
    if folder is None:
        raise ImportError(f"--peers names no folder with {files[0]} of {origin}")
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ImportError(f"{folder} has no {missing[0]}: it is of {origin}")


def load(folder, path):
    """A module, without what the packages around it would import."""
    names = path.removesuffix(".py").split("/")
    for depth in range(1, len(names)):
        package = ".".join(names[:depth])
        if package not in sys.modules:
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = [str(folder.joinpath(*names[:depth]))]
    return importlib.import_module(".".join(names))


def stand_in(name, **members):
    for depth in range(1, name.count(".") + 1):
        package = ".".join(name.split(".")[:depth])
        sys.modules.setdefault(package, types.ModuleType(package)).__dict__.setdefault("__path__", [])
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(members)


def yes(*_):
    return True


def no(*_):
    return False


def take_first_config(module):
    """Without a GPU nothing can be tuned."""
    for x in list(vars(module).values()):
        while hasattr(x, "fn"):
            if hasattr(x, "configs"):
                x.configs = x.configs[-1:]
            x = x.fn


def modules(folder, source, interpreted):
    find(folder, source)
    loaded = [load(folder, path) for path in source[1]]
    if interpreted:
        for module in loaded:
            take_first_config(module)
    return {path.split("/", 1)[1].removesuffix(".py"): module for path, module in zip(source[1], loaded)}


# ---- MiniMax-M3

def msa_libnsa(folder, interpreted):
    import nsa

    def make(data):
        m = data.model
        config = nsa.Config(heads=m.heads, kv_heads=m.kv_heads, head_dim=m.dim, compress="none", window=0, gate="none",
                            select=dict(by="index", block=m.block, count=m.count, init=m.init, local=m.local, pool="max"),
                            index=dict(heads=m.kv_heads, dim=m.dim))
        cache = {"k0": data.k, "v0": data.v, "k_idx": data.k_idx}
        place = dict(config=config, kv_len=data.lengths, max_kv=data.tokens, index_q=data.index_q)
        if data.decode:
            return Work({"total": lambda c: nsa.decode(data.q, cache, block_table=data.tables[c], **place)})
        return Work({"total": lambda c: nsa.prefill(data.q, cache, block_table=data.tables[c], max_q=data.tokens, **place)})
    return make


def msa_vllm(folder, interpreted):
    import triton
    import triton.language as tl
    find(folder, VLLM)
    hopper = types.SimpleNamespace(is_cuda=yes, is_rocm=no, is_device_capability=no,
                                   is_arch_support_pdl=no if interpreted else yes)
    stand_in("vllm.platforms", current_platform=hopper)
    stand_in("vllm.triton_utils", tl=tl, triton=triton)
    stand_in("vllm.utils.math_utils", round_up=lambda x, y: -(-x // y) * y)
    sys.modules["vllm"].__path__ = [str(folder / "vllm")]
    found = modules(folder, VLLM, interpreted)
    index, sparse = found["models/minimax_m3/common/ops/index_topk"], found["models/minimax_m3/common/ops/sparse_attn"]

    def make(data):
        torch, m = data.torch, data.model
        # K and V of a page lie side by side: [pages, KV heads, 128, 2 * D].
        cache = torch.empty(data.pages, m.kv_heads, m.page, 2 * m.dim, dtype=data.k.dtype, device=data.k.device)
        cache[..., :m.dim], cache[..., m.dim:] = data.k.transpose(1, 2), data.v.transpose(1, 2)
        keys, out, scale = data.k_idx[:, :, 0], torch.empty_like(data.q), m.dim ** -0.5
        if data.decode:
            choose = lambda c: index.minimax_m3_index_decode(
                data.index_q, keys, data.tables[c], data.lengths, data.tokens, m.count, m.init, m.local, m.kv_heads, 1, 1)

            def attend(c, lists):
                sparse.minimax_m3_sparse_attn_decode(data.q, cache, lists, data.tables[c], data.lengths, m.kv_heads, scale,
                                                     out, 1)
                return out
        else:
            begins = torch.tensor([0, data.tokens], dtype=torch.int32, device=data.q.device)
            before = torch.zeros(1, dtype=torch.int32, device=data.q.device)

            def choose(c):
                scores = index.minimax_m3_index_score(data.index_q, keys, data.tables[c], begins, data.lengths, before,
                                                      data.tokens, data.tokens, m.kv_heads)
                return index.minimax_m3_index_topk(scores, begins, before, data.tokens, m.count, m.init, m.local)

            def attend(c, lists):
                sparse.minimax_m3_sparse_attn(data.q, cache, lists, data.tables[c], begins, data.lengths, before,
                                              data.tokens, m.kv_heads, scale, out)
                return out
        chosen = [choose(c) for c in range(data.copies)]
        return Work({"total": lambda c: attend(c, choose(c)), "index": choose, "attend": lambda c: attend(c, chosen[c])},
                    chosen[0])
    return make


def msa_sglang(folder, interpreted):
    find(folder, SGLANG)
    # The choice of blocks in decoding is Triton's: sglang's own CUDA kernel is compiled by sglang at run time.
    off = types.SimpleNamespace(get=no)
    stand_in("sglang.srt.environ", envs=types.SimpleNamespace(SGLANG_OPT_USE_MINIMAX_DECODE_TOPK_RADIX=off))
    stand_in("sglang.srt.runtime_context", get_platform=lambda: types.SimpleNamespace(is_sm90=True))
    stand_in("sglang.srt.utils", is_gfx95_supported=no, is_xpu=no, is_hip=no)
    sys.modules["sglang"].__path__ = [str(folder / "sglang")]
    found = modules(folder, SGLANG, interpreted)
    at = "kernels/ops/attention/minimax_sparse/"

    def make(data):
        torch, m = data.torch, data.model
        slots = lambda x: x.flatten(0, 1)  # [pages * 128, H, D]
        within = torch.arange(m.page, dtype=torch.int32, device=data.q.device)
        tables = [(table[:, :, None] * m.page + within).flatten(1) for table in data.tables]  # a slot for each token
        rows = torch.arange(data.batch, device=data.q.device)
        index = dict(v_cache=None, sink=None, slot_ids=rows, topk=m.count, init_blocks=m.init, local_blocks=m.local,
                     disable_index_value=True, page_size=m.page)
        main = dict(sink=None, slot_ids=rows, sm_scale=m.dim ** -0.5)
        if data.decode:
            lengths = data.lengths.long()
            choose_of = found[at + "decode/flash_with_topk_idx"].flash_decode_with_topk_idx
            attend_of = found[at + "decode/topk_sparse"].flash_decode_with_gqa_share_sparse
            choose = lambda c: choose_of(q=data.index_q, k_cache=slots(data.k_idx), req_to_token=tables[c], seq_lens=lengths,
                                         max_seqlen=data.tokens, block_size=m.block, **index)[1]
            attend = lambda c, lists: attend_of(q=data.q, k_cache=slots(data.k), v_cache=slots(data.v), topk_idx=lists,
                                                req_to_token=tables[c], seq_lens=lengths, block_size=m.block,
                                                page_size=m.page, **main)
        else:
            begins = torch.tensor([0, data.tokens], dtype=torch.int32, device=data.q.device)
            place = dict(cu_seqlens=begins, seq_lens=data.lengths, prefix_lens=torch.zeros_like(data.lengths),
                         max_seqlen_q=data.tokens, block_size_q=1, block_size_k=m.block, cu_seqblocks_q=begins,
                         max_seqblock_q=data.tokens)
            choose_of = found[at + "prefill/flash_with_topk_idx"].flash_prefill_with_topk_index
            attend_of = found[at + "prefill/topk_sparse"].flash_prefill_with_gqa_share_sparse
            choose = lambda c: choose_of(q=data.index_q, k_cache=slots(data.k_idx), req_to_token=tables[c],
                                         max_seqlen_k=data.tokens, all_seqblock_q=data.tokens, **index, **place)[1]
            attend = lambda c, lists: attend_of(q=data.q, k_cache=slots(data.k), v_cache=slots(data.v), topk_idx=lists,
                                                req_to_token=tables[c], **main, **place)
        chosen = [choose(c) for c in range(data.copies)]
        return Work({"total": lambda c: attend(c, choose(c)), "index": choose, "attend": lambda c: attend(c, chosen[c])},
                    chosen[0])
    return make


# ---- MiniCPM4

def infllm_libnsa(folder, interpreted):
    import nsa

    def make(data):
        torch, m = data.torch, data.model
        config = nsa.Config(heads=m.heads, kv_heads=m.kv_heads, head_dim=m.dim, window=0, gate="none",
                            compress=dict(block=m.fine[0], stride=m.fine[1], phi="mean", output=False),
                            select=dict(block=m.block, count=m.count, init=m.init, local=m.local, pool="max",
                                        normalizer=dict(block=m.coarse[0], stride=m.coarse[1])))
        room = lambda every: torch.zeros(data.pages, m.page // every, m.kv_heads, m.dim, dtype=data.k.dtype,
                                         device=data.k.device)
        cache = {"k0": room(1), "v0": room(1), "k_cmp": room(m.fine[1]), "k_norm": room(m.coarse[1])}
        place = dict(config=config, kv_len=data.lengths, max_kv=data.tokens, block_table=data.tables[0])
        nsa.append(cache, data.k, data.v, **place)
        return Work({"total": lambda c: nsa.prefill(data.q, cache, max_q=data.tokens, **place)})
    return make


def infllm_openbmb(folder, interpreted):
    find(folder, INFLLM)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    import infllm_v2

    def make(data):
        torch, m = data.torch, data.model
        begins = lambda count: torch.tensor([0, count], dtype=torch.int32, device=data.q.device)
        of_q, of_fine, of_coarse = begins(data.tokens), begins(data.k_fine.shape[0]), begins(data.k_coarse.shape[0])
        fine = data.k_fine.shape[0]

        def choose(c):  # as the models' compressed_attention does
            scores = infllm_v2.infllmv2_attn_stage1(data.q, data.k_fine, data.k_coarse, of_q, of_fine, of_coarse, data.tokens,
                                                    fine, causal=True)
            pooled = infllm_v2.max_pooling_1d_varlen(scores, of_q, of_fine, torch.zeros_like(of_q[:1]), data.tokens, fine,
                                                     local_blocks=m.local - 1, init_blocks=m.init, block_size=m.block,
                                                     stride=m.fine[1])
            found = pooled.topk(min(m.count, pooled.shape[2]), dim=-1).indices.sort(-1).values
            now = torch.arange(data.tokens, device=found.device)[:, None] // m.block
            return torch.where(found > now, -1, found).int()
        attend = lambda c, lists: infllm_v2.infllmv2_attn_varlen_func(data.q, data.k, data.v, of_q, of_q, data.tokens,
                                                                      data.tokens, causal=True, topk_idx=lists)
        lists = choose(0)
        return Work({"total": lambda c: attend(c, choose(c)), "index": choose, "attend": lambda c: attend(c, lists)}, lists)
    return make


def infllm_triton(folder, interpreted):
    import infllm_triton as kernels
    if interpreted:
        take_first_config(kernels)

    def make(data):
        choose = lambda c: kernels.choose(data.q, data.k_fine, data.k_coarse, data.model, data.tokens)
        attend = lambda c, lists: kernels.attention(data.q, data.k, data.v, lists, data.model)
        lists = choose(0)
        now = data.torch.arange(data.tokens, device=lists.device)[:, None] // data.model.block
        return Work({"total": lambda c: attend(c, choose(c)), "index": choose, "attend": lambda c: attend(c, lists)},
                    data.torch.where(lists > now, -1, lists))
    return make


MSA = {"libnsa": msa_libnsa, "vllm": msa_vllm, "sglang": msa_sglang}
LOADERS = {"msa-prefill": MSA, "msa-decode": MSA,
           "infllm-prefill": {"libnsa": infllm_libnsa, "triton": infllm_triton, "infllm_v2": infllm_openbmb}}
