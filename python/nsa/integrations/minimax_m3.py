# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""MiniMax-M3 of Hugging Face's transformers on libnsa (written against transformers 5.17).

    import nsa.integrations.minimax_m3 as nsa_m3
    nsa_m3.attach(model)                       # until undo() of what this returns
    model.generate(ids, max_new_tokens=64)     # with transformers' cache; or over pages:
    model.generate(ids, past_key_values=nsa_m3.PagedCache(model, max_len=4096), max_new_tokens=64)

libnsa then chooses the blocks of the sparse layers and attends over them, with the weights and results of
transformers' own attention, and gradients of q, k and v. Layers without an index run transformers' sdpa, or
eager where there is a mask. After `register()` alone, attn_implementation="nsa-minimax-m3" leaves the choice
of blocks to transformers.

What libnsa does not compute the same way goes back to transformers' eager attention, with a warning for each
reason, and is counted in `calls`: an attention mask (padding on either side, packed sequences), positions that
do not count from the first token, a static cache, dropout, float64, and float32 on a GPU without autocast. Over
pages, which transformers' attention cannot read, such a call raises ValueError with the reason; so do gradients.
torch.compile breaks its graph at the attention, and is an error with fullgraph=True.
"""
from __future__ import annotations

import collections
import functools
import warnings
import weakref
from typing import Callable, List, NamedTuple, Optional

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, StaticLayer
from transformers.masking_utils import sdpa_mask
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as modeling

from .._config import Config
from .._torch import attention
from ..kv_cache import KVCache

NAME = "nsa-minimax-m3"

calls = collections.Counter()  # of sparse layers: "libnsa", and "transformers: " with the reason


def register() -> None:
    """Makes attn_implementation="nsa-minimax-m3" known to transformers. `attach` does so, too."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask)


@functools.lru_cache(maxsize=256)
def _config(heads: int, kv_heads: int, dim: int, index_heads: int, index_dim: int, block: int, count: int, local: int) -> Config:
    return Config(heads=heads, kv_heads=kv_heads, head_dim=dim, compress="none", window=0, gate="none",
                  select=dict(by="index", pool="max", block=block, count=count, init=0, local=local),
                  index=dict(heads=index_heads, dim=index_dim))


def config_of(model_config) -> Config:
    """The configuration of a model's sparse layers, from the model's (or its text model's) own."""
    c = model_config.get_text_config()
    return _config(c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.index_n_heads, c.index_head_dim,
                   c.index_block_size, c.index_topk_blocks, c.index_local_blocks)


# ---- the index

class Index(NamedTuple):
    """What chooses a call's blocks. It takes the way of transformers' block_indices, from the indexer to `attend`."""
    q: Tensor                           # [B, Hi, T, Di]
    k: Tensor                           # [B, 1, S, Di]; over pages of the new tokens only
    pages: Optional["PagedLayer"]
    static: bool
    blocks: Callable[[], Tensor]        # transformers' own choice


class _Written:
    """In the place of a cache whose index keys have been written already."""

    def __init__(self, layer_idx: int, keys: Tensor):
        self.layers, self._keys = {layer_idx: self}, keys

    def update_index(self, _: Tensor) -> Tensor:
        return self._keys


class Indexer(modeling.MiniMaxM3VLIndexer):
    """transformers' indexer, whose parameters it shares, but for the scores and the choice."""

    def __init__(self, own: modeling.MiniMaxM3VLIndexer):
        object.__setattr__(self, "__dict__", own.__dict__)

    @torch.no_grad()  # a choice of blocks has no gradient
    def forward(self, hidden_states, position_embeddings, past_key_values, position_ids) -> Index:
        heads = lambda x, norm: norm(x.unflatten(-1, (-1, self.head_dim))).transpose(1, 2)
        q, k = heads(self.q_proj(hidden_states), self.q_norm), heads(self.k_proj(hidden_states), self.k_norm)
        q, k = modeling.apply_rotary_pos_emb(q, k, *(x[..., :self.head_dim] for x in position_embeddings))
        layer = None if past_key_values is None else past_key_values.layers[self.layer_idx]
        pages = layer if isinstance(layer, PagedLayer) else None
        if pages is None and layer is not None:
            k = layer.update_index(k)

        def blocks():
            written = None if layer is None else _Written(self.layer_idx, k)
            return modeling.MiniMaxM3VLIndexer.forward(self, hidden_states, position_embeddings, written, position_ids)
        return Index(q, k, pages, isinstance(layer, StaticLayer), blocks)


# ---- the attention function

def mask(batch_size: int, q_length: int, kv_length: int, q_offset=0, kv_offset: int = 0,
         attention_mask: Optional[Tensor] = None, allow_is_causal_skip: bool = True, **kwargs) -> Optional[Tensor]:
    """None: each token sees itself and all before it. Else transformers' mask, True where a token is seen."""
    if (allow_is_causal_skip and not isinstance(q_offset, Tensor) and kv_offset == 0 and kv_length == q_offset + q_length and
            (attention_mask is None or bool(attention_mask[:, -kv_length:].all()))):
        return None
    return sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, attention_mask=attention_mask,
                     allow_is_causal_skip=False, **kwargs)


def _causal(rows: int, keys: int, device) -> Tensor:
    return torch.ones(1, 1, rows, keys, dtype=torch.bool, device=device).tril(keys - rows)


_seen = None  # the last position_ids, their version, their first value, and the answer: layers of a model ask in turn


def _in_order(position_ids: Optional[Tensor], first: int) -> bool:
    """Whether every row is first, first + 1, ..."""
    global _seen
    if position_ids is None:
        return True
    seen = _seen  # of one moment: other threads write it, too
    if seen is not None and seen[0]() is position_ids and seen[1:3] == (position_ids._version, first):
        return seen[3]
    want = torch.arange(first, first + position_ids.shape[-1], device=position_ids.device)
    answer = bool((position_ids == want).all())
    if not position_ids.is_inference():
        _seen = weakref.ref(position_ids), position_ids._version, first, answer
    return answer


def reason_for_transformers(query: Tensor, keys: int, attention_mask: Optional[Tensor], dropout: float, static: bool,
                            position_ids: Optional[Tensor]) -> Optional[str]:
    """Why a call goes back to transformers; None: libnsa serves it. keys: their number, that of the new ones included."""
    if query.device.type not in ("cpu", "cuda"):
        return f"the tensors are on {query.device.type}"
    if query.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"the tensors are {str(query.dtype).split('.')[1]}"
    if query.dtype == torch.float32 and query.is_cuda and not torch.is_autocast_enabled("cuda"):
        return "the tensors are float32 on a GPU"
    if static:
        return "the cache is static"
    if attention_mask is not None:
        return "there is an attention mask (padding, packed sequences)"
    if dropout:
        return "attention weights are dropped (attention_dropout)"
    if not _in_order(position_ids, keys - query.shape[2]):
        return "position_ids do not count from the first token"
    return None


@torch.compiler.disable  # what a call's positions are decides who computes it
def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor] = None,
           scaling: Optional[float] = None, dropout: float = 0.0, block_indices=None,
           position_ids: Optional[Tensor] = None, **kwargs):
    """transformers' attention function: query [B, Hq, T, D], key and value [B, Hkv, S, D] -> ([B, T, Hq, D], None)."""
    if getattr(module, "indexer", None) is None:
        return _dense(module, query, key, value, attention_mask, scaling, dropout)
    index = block_indices if isinstance(block_indices, Index) else None
    pages = None if index is None else index.pages
    keys = key.shape[2] + (0 if pages is None else pages.get_seq_length())
    static = index is not None and index.static
    reason = reason_for_transformers(query, keys, attention_mask, dropout, static, position_ids)
    if pages is not None:
        if reason is None and torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
            reason = "gradients are wanted"
        if reason is not None:
            raise ValueError(f"libnsa does not compute this over the pages of a PagedCache: {reason}; transformers does, over its "
                             "own cache or without one")
        calls["libnsa"] += 1
        return pages.attend(query, key, value, index, scaling), None
    if reason is not None:
        return _fall_back(reason, module, query, key, value, attention_mask, scaling, dropout, block_indices, position_ids)
    calls["libnsa"] += 1
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # [B, T, H, D]
    indexer = module.indexer
    config = _config(q.shape[2], k.shape[2], q.shape[3], k.shape[2] if index is None else index.q.shape[1], indexer.head_dim,
                     indexer.block_size, indexer.topk_blocks, indexer.local_blocks)
    if index is not None:
        chosen_by = dict(index_q=index.q.transpose(1, 2), k_idx=index.k.transpose(1, 2))
        return attention(q, k, v, config=config, scale=scaling, **chosen_by), None
    blocks = block_indices.transpose(1, 2).int()
    blocks = nn.functional.pad(blocks, (0, indexer.topk_blocks - blocks.shape[-1]), value=-1)
    return attention(q, k, v, config=config, scale=scaling, block_indices=blocks), None


def _dense(module, query, key, value, attention_mask, scaling, dropout):
    """A layer without an index."""
    if attention_mask is not None:
        # Rows of padding are unlike in eager and in sdpa, and their index keys rank blocks of later layers.
        if attention_mask.dtype == torch.bool:
            lowest = torch.finfo(query.dtype).min
            attention_mask = torch.zeros_like(attention_mask, dtype=query.dtype).masked_fill(~attention_mask, lowest)
        return modeling.eager_attention_forward(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout)
    if 1 < query.shape[2] < key.shape[2]:
        attention_mask = _causal(query.shape[2], key.shape[2], query.device)
    return AttentionInterface()["sdpa"](module, query, key, value, attention_mask, scaling=scaling, dropout=dropout)


def _fall_back(reason, module, query, key, value, attention_mask, scaling, dropout, block_indices, position_ids):
    calls["transformers: " + reason] += 1
    if calls["transformers: " + reason] == 1:
        warnings.warn(f"libnsa: {reason}; transformers' eager attention computes this", stacklevel=3)
    rows, keys = query.shape[2], key.shape[2]
    if position_ids is None:
        position_ids = torch.arange(keys - rows, keys, device=query.device)
    position_ids = position_ids.expand(query.shape[0], -1)
    if attention_mask is None:
        attention_mask = _causal(rows, keys, query.device)
    blocks = block_indices.blocks() if isinstance(block_indices, Index) else block_indices
    chosen = module.indexer.build_block_mask(blocks, attention_mask, keys, query.dtype, query.device, position_ids)
    return modeling.eager_attention_forward(module, query, key, value, chosen, scaling=scaling, dropout=dropout)


# ---- the model

class Attached:
    """What attach() did. Also a context manager."""

    def __init__(self):
        self.replaced, self.texts, self.before = [], [], calls.copy()

    @property
    def calls(self) -> collections.Counter:
        """Calls of sparse layers since attach(): "libnsa", and "transformers: " with the reason."""
        return calls - self.before

    def undo(self) -> None:
        """Gives the model its own attention back."""
        for layer, indexer in self.replaced:
            layer.indexer = indexer
        for text, name in self.texts:
            text.set_attn_implementation(name)
        self.replaced.clear()
        self.texts.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.undo()


def _sparse_layers(model: nn.Module) -> List[nn.Module]:
    return [x for x in model.modules() if isinstance(x, modeling.MiniMaxM3VLAttention) and x.indexer is not None]


def attach(model: nn.Module) -> Attached:
    """Puts libnsa in the place of the attention of a MiniMax-M3's sparse layers. Its parameters and their names stay."""
    layers = _sparse_layers(model)
    if not layers:
        raise ValueError("the model has no sparse layer of transformers' MiniMax-M3 (layer_types: \"minimax_m3_sparse\")")
    if any(isinstance(layer.indexer, Indexer) for layer in layers):
        raise RuntimeError("libnsa is attached to the model already: call undo() on what attach() returned")
    for layer in layers:
        config_of(layer.config)  # what libnsa does not have is an error here
    register()
    done = Attached()
    for text in model.modules():
        if isinstance(text, modeling.MiniMaxM3VLTextModel):
            done.texts.append((text, text.config._attn_implementation))
            text.set_attn_implementation(NAME)
    for layer in layers:
        done.replaced.append((layer, layer.indexer))
        layer.indexer = Indexer(layer.indexer)
    return done


# ---- the cache

class PagedLayer(CacheLayerMixin):
    """A sparse layer of a PagedCache, which forks, shortens and ends the sequences of all its layers at once."""
    is_croppable, is_sliding, supports_early_init = True, False, False

    def __init__(self, owner: "PagedCache", layer: int):
        super().__init__()
        self._owner, self._layer, self.length = weakref.ref(owner), layer, 0

    def lazy_initialization(self, *_) -> None:
        """The pages exist from the first."""

    def update(self, key_states, value_states, *_, **__):
        """The new tokens', as they are: `attend` writes them."""
        return key_states, value_states

    def update_index(self, _):
        raise ValueError("a PagedCache serves a model that libnsa is attached to: nsa.integrations.minimax_m3.attach(model)")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, index: Index, scale: Optional[float]) -> Tensor:
        owner = self._owner()
        count, _, new, _ = query.shape
        batch = owner._begin(self, count, new)
        q, k, v, index_q, k_idx = (x.transpose(1, 2).flatten(0, 1).to(owner.dtype)  # autocast mixes dtypes
                                   for x in (query, key, value, index.q, index.k))
        owner.pages.append(self._layer, batch, k, v, k_idx=k_idx)
        self.length += new
        o = owner.pages.attend(self._layer, batch, q, index_q=index_q, scale=scale)
        return o.unflatten(0, (count, new)).to(value.dtype)

    def get_mask_sizes(self, query_length: int):
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self._owner().pages.max_len

    def _of_the_cache(self, *_, **__) -> None:
        """PagedCache does this for the sparse layers together."""

    offload = prefetch = reorder_cache = crop = batch_repeat_interleave = batch_select_indices = _of_the_cache


class PagedCache(Cache):
    """A cache for generate() and forward whose sparse layers keep K, V and index keys in pages (nsa.KVCache).

    model       attached: the pages have the device of its sparse layers
    max_len     tokens of the longest sequence, those to come included
    batch       sequences [1]; beams count
    page_size   tokens of a page: 16, 32, 64 or 128 [128]
    pages       [enough for `batch` sequences of max_len]
    max_q       the most tokens of a step that the kernels of decode serve, 1 to 16 [1]: drafts want their number + 1
    dtype       of the pages [of the layers' weights]; under autocast give its dtype
    cmp_dtype   of the index keys: torch.float8_e4m3fn stores them in FP8 [dtype]. A choice of blocks may then differ
                where scores are nearly equal
    scales      of what is in FP8, {"k_idx": ...}, for all layers or a list with one such dict a layer: see nsa.KVCache [1]

    Beams share the pages of their common tokens. Without padding all sequences have one length.
    """

    def __init__(self, model: nn.Module, max_len: int, batch: int = 1, *, page_size: int = 128, pages: Optional[int] = None,
                 max_q: int = 1, dtype: Optional[torch.dtype] = None, cmp_dtype: Optional[torch.dtype] = None, scales=None):
        sparse = _sparse_layers(model)
        if not sparse or not all(isinstance(layer.indexer, Indexer) for layer in sparse):
            raise ValueError("libnsa is not attached to the model: call nsa.integrations.minimax_m3.attach(model) first")
        places = {(layer.k_proj.weight.device, layer.k_proj.weight.dtype) for layer in sparse}
        if len(places) > 1:
            raise ValueError(f"the model's sparse layers have several devices or dtypes, {sorted(map(str, places))}; a PagedCache "
                             "lies on one")
        device, of_weights = places.pop()
        self.dtype = dtype or of_weights
        config = model.config.get_text_config()
        pages = batch * -(-max_len // page_size) if pages is None else pages
        self.pages = KVCache(config_of(config), len(sparse), pages, page_size, max_len=max_len, max_q=max_q, dtype=self.dtype,
                             device=device, cmp_dtype=cmp_dtype, scales=scales)
        self._sequences: List[int] = []  # the name that each row's has in `pages`
        self._names, self._step = 0, None
        ranks = {layer.layer_idx: i for i, layer in enumerate(sparse)}
        super().__init__(layers=[PagedLayer(self, ranks[i]) if i in ranks else DynamicLayer()
                                 for i in range(config.num_hidden_layers)])

    @property
    def _paged(self) -> List[PagedLayer]:
        return [layer for layer in self.layers if isinstance(layer, PagedLayer)]

    def _new_names(self, count: int) -> List[int]:
        self._names += count
        return list(range(self._names - count, self._names))

    def _begin(self, layer: PagedLayer, count: int, new: int):
        """The step's batch: the first sparse layer begins it."""
        if layer is self._paged[0]:
            if not self._sequences:
                self._sequences = self._new_names(count)
            if count != len(self._sequences):
                raise ValueError(f"the batch has {count} rows; the cache has {len(self._sequences)} sequences")
            self._step = self.pages.begin(self._sequences, [new] * count)
        return self._step

    def _choose(self, rows: List[int]) -> None:
        """Row i becomes what row rows[i] was."""
        if not self._sequences:
            return
        names = self._new_names(len(rows))
        for name, row in zip(names, rows):
            self.pages.fork(self._sequences[row], name)
        for name in self._sequences:
            self.pages.free(name)
        self._sequences = names

    def reset(self) -> None:
        """Ends all sequences."""
        for name in self._sequences:
            self.pages.free(name)
        self._sequences = []
        for i, layer in enumerate(self.layers):
            if isinstance(layer, PagedLayer):
                layer.length = 0
            else:
                self.layers[i] = DynamicLayer()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._choose(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._choose([row for row in range(len(self._sequences)) for _ in range(repeats)])

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._choose(torch.arange(len(self._sequences))[indices.cpu()].tolist())

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last -tokens_to_remove tokens; a positive number is the length to keep, as in transformers."""
        tokens_to_remove = int(tokens_to_remove)  # generate() gives a tensor
        length = self._paged[0].length
        keep = min(tokens_to_remove, length) if tokens_to_remove > 0 else length + tokens_to_remove
        super().crop(tokens_to_remove)
        for name in self._sequences:
            self.pages.truncate(name, keep)
        for layer in self._paged:
            layer.length = keep
