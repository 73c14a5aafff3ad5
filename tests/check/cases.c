/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "cases.h"

#include "base/math.h"
#include "models.h"
#include "verify/parallel.h"
#include "verify/rows.h"

#include <string.h>

/* The lengths and dimensions that other projects' suites test, and the edge rows that this
 * library promises to handle. 104 and 64 replace head dims 100 and 60, which are not multiples
 * of 8. */
const char *const chk_fixed_cases[] = {
  /* the dimensions of flash-linear-attention's NSA tests (B sequences of T) */
  "fwd:h16/1:d64/64:l32/32:s32x16+1+2:w32:q=63:scale=1:gate=weights",
  "fwd:h32/1:d104/104:l32/32:s32x16+1+2:w32:q=111x3:scale=1:gate=weights",
  "fwd:h32/2:d64/64:l32/32:s32x16+1+2:w64:q=1024x3:scale=0.1",
  "fwd:h32/2:d128/128:l32/32:s32x16+1+2:w128:q=1024x3:scale=0.1",
  "fwd:h32/2:d64/64:l32/32:s32x16+1+2:w256:q=2048x4:scale=0.1",
  /* the same, variable lengths */
  "fwd:h32/2:d64/64:l32/32:s32x16+1+2:w16:q=15",
  "fwd:h32/2:d64/64:l32/32:s32x16+1+2:w512:q=15,190,345,250",
  "fwd:h32/2:d128/128:l32/16:s64x16+1+2:w512:q=256,244,500",
  "fwd:h16/1:d64/64:l32/16:s64x16+1+2:w512:q=15,85,200,900,800",
  /* the same, cached: a few queries at the end of a long sequence */
  "fwd:h16/1:d64/64:l32/16:s32x8+1+2:w64:q=1,3,15,25,33:kv=300,300,300,300,300",
  "fwd:h16/1:d64/64:l32/16:s32x8+1+2:w64:q=256,280:kv=512,777",
  /* FlashMoBA's pairs of query and KV length */
  "fwd:q=1,113,1023:kv=147,203,1024:s64x8+1+2:w128",
  /* FlashMLA: query lengths, and lists without any valid entry */
  "fwd:h64/4:d128/128:s64x16+1+2:w512:q=1,62,213,1024:kv=1,62,213,1024",
  "fwd:h16/1:d128/128:s64x16+1+2:w512:q=70000:fill=correlated",
  "fwd:h16/2:d64/64:s64x8+1+2:q=130,1:kv=130,700:sel=blocks:gate=weights",
  /* vLLM: large logits, sentinels inside the lists, long prefixes, strided queries */
  "fwd:h16/2:d128/128:s64x8+1+2:w128:q=700:sel=blocks:fill=large:layout=strided",
  "fwd:h8/1:d64/64:s64x16+1+2:w512:q=5:kv=1000000", "fwd:h8/2:d64/64:q=300:layout=packed",
  /* the dimensions of the speed targets and the paper, at lengths at which rows are sampled */
  "fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=8192:fill=correlated",
  "fwd:h64/4:d192/128:l32/16:s64x16+1+2:w512:q=8192:kv=branches:fill=correlated",
  "fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=65536:fill=correlated:overlap",
  /* more than 2^31 elements in q and in o */
  "fwd:h64/1:d256/256:w64:q=140000:branches=5",
  /* group sizes */
  "fwd:h2/2:d64/64:q=300", "fwd:h6/3:d64/64:q=300", "fwd:h3/1:d64/64:q=300",
  "fwd:h5/1:d64/64:q=300", "fwd:h6/1:d64/64:q=300", "fwd:h7/1:d64/64:q=300",
  "fwd:h12/1:d64/64:q=300", "fwd:h24/2:d64/64:q=300", "fwd:h48/1:d64/64:q=300",
  "fwd:h64/1:d64/64:q=300",
  /* small groups whose blocks the compressed branch's kernel chooses */
  "fwd:h3/3:d128/128:l32/16:s64x16+1+2:w64:q=5000,130,2300:kv=5000,130,2900",
  "fwd:h2/2:d64/64:f16:l32/16:s64x16+1+2:w64:q=3000:fill=large",
  "fwd:h2/2:d64/128:l64/16:s64x7+0+0:w64:q=2500,33:kv=4000,40:fill=constant",
  "fwd:h4/2:d128/128:l32/16:s64x16+1+2:w64:q=5000,130,2300:kv=5000,130,2900",
  "fwd:h8/2:d128/128:l32/16:s64x16+1+2:w64:q=4500,40:fill=correlated",
  "fwd:h8/4:d64/64:l32/16:s64x16+1+2:w64:q=2500,33:fill=constant",
  /* small groups with long lists of blocks: KV-stationary where that is legal */
  "fwd:h4/4:d128/128:l16/16:s16x6+1+2:w64:q=1700,33,130",
  "fwd:h8/2:d64/64:l16/16:s32x8+1+2:q=5,90,2500:kv=2100,90,2500:sel=blocks:slack=40",
  "fwd:h4/2:d192/128:f16:l16/16:s48x20+1+2:q=4000:fill=correlated:branches=2",
  "fwd:h8/8:d64/128:l16/16:s32x16+1+2:q=3000,1:kv=3000,2600:sel=blocks.shared:gate=weights",
  "repeat:h4/4:d64/64:l16/16:s16x6+1+2:q=1700,33",
  /* head dims */
  "fwd:d16/16:q=300", "fwd:d24/40:q=300", "fwd:d256/256:q=300", "fwd:d256/16:q=300",
  "fwd:d16/256:q=300", "fwd:d72/136:f16:q=300", "fwd:d192/128:f16:q=300",
  /* edge rows: no tokens, rows before the sequence, shorter than one block, block edges */
  "fwd:q=0:kv=0", "fwd:q=5:kv=0", "fwd:q=0,5,130:kv=9,0,130", "fwd:q=40:kv=9", "fwd:q=31",
  "fwd:q=32", "fwd:q=33", "fwd:q=1,31,32,47,48,63,64,65", "fwd:q=200,200:kv=64,500:slack=77",
  "fwd:q=200:nobatch:layout=heads", "fwd:s64x16+1+2:q=700:lists",
  /* k and v with one head for all */
  "fwd:h8/4:q=300,21:layout=shared", "fwd:h64/4:d128/128:w512:q=3000:nobatch:layout=shared",
  "fwd:h16/2:d128/64:q=700,90:sel=blocks:kv=branches:layout=shared", "dense:q=300:layout=shared",
  "fwd:s32x20+1+2:q=1,600,31:lists:h16/1:d128/128",
  /* sequences of one row or block, whose errors are not averaged, with the fewest columns */
  "fwd:h64/4:d16/16:s64x16+1+2:w256:q=1x16:kv=300x16:fill=correlated",
  "fwd:h64/4:d24/24:s64x16+1+2:w256:q=1x16:kv=40x16:fill=correlated",
  "fwd:h64/4:d64/64:s64x16+1+2:w256:q=1x16:kv=1000x16:fill=correlated",
  "fwd:h64/4:d128/128:s64x16+1+2:w256:q=1x16:kv=300x16",
  "compress:phi=mlp.8.gelu:h64/64:d16/16:q=33x16", "compress:phi=mlp.8.relu:h64/64:d128/64:q=40x16",
  "compress:phi=linear:h64/64:d16/24:q=33x16", "compress:phi=mlp.16.silu:h64/64:d24/16:f16:q=33x16",
  /* fills for which rules, not averages, decide */
  "fwd:q=700:s32x6+1+2:fill=constant", "fwd:q=700:s32x6+0+0:fill=constant",
  "fwd:q=700:s32x6+1+2:fill=tiny", "fwd:q=700:s32x6+1+2:fill=large",
  "fwd:q=700:s32x6+1+2:fill=correlated", "fwd:q=700:s32x1+0+0:fill=correlated",
  /* branches off, alone, and with one pair of K and V each */
  "fwd:w0:q=200", "fwd:s64x0+0+0:q=200", "fwd:s64x0+0+0:w0:q=200", "fwd:branches=1:q=300",
  "fwd:branches=2:q=300", "fwd:branches=4:q=300", "fwd:branches=5:q=300:kv=branches",
  /* phi, gates, the caller's selection */
  "fwd:phi=linear:q=200,77", "fwd:phi=mlp.32.gelu:q=200,77", "fwd:phi=mlp.48.relu:f16:q=200",
  "fwd:phi=external:q=200,20,77", "fwd:gate=weights.f32:q=200", "fwd:gate=logits.f32:q=200",
  "fwd:gate=none:q=200,20", "fwd:gate=none:h64/4:d128/128:s64x16+1+2:w512:q=1500",
  "fwd:gate=mlp.64.0.silu:q=200", "fwd:gate=mlp.64.32.gelu:q=200", "fwd:sel=blocks.shared:q=300",
  "fwd:sel=ranges:q=300,40", "fwd:sel=ranges.shared:q=300",
  "fwd:h2/1:d16/16:l4/4:s4x3+1+2:w16:q=9:kv=2100",
  /* other rankings of blocks, alone and as MiniCPM4 has them */
  "fwd:pool=max:h16/1:d128/128:s64x6+1+2:q=900,77",
  "fwd:cmp=keys:h16/1:d128/128:s64x6+1+2:q=900,77",
  "fwd:norm=128/64:h16/1:d128/128:s64x6+1+2:q=900,130,5",
  "fwd:norm=64/16:cmp=keys:q=5,127:kv=700,130",
  "fwd:pool=max:norm=32/32:h64/1:l16/16:s48x5+1+1:q=700:fill=correlated",
  "fwd:cmp=keys:pool=max:norm=128/64:gate=none:w0:h32/2:d128/"
  "128:s64x24+1+8:q=2500,70:fill=correlated",
  "fwd:cmp=keys:phi=linear:pool=max:q=300,20", "fwd:cmp=keys:phi=external:q=300,20",
  "fwd:pool=max:norm=64/32:branches=2:q=500:fill=constant", "fwd:cmp=keys:sel=blocks:q=300",
  /* blocks that an index chooses, alone and as MiniMax-M3 has them */
  "fwd:index=64:q=300,20", "fwd:index=24:h6/3:q=5,127:kv=700,130:kv=branches",
  "fwd:index=128:gate=none:w0:h64/4:d128/128:s128x16+0+1:q=2500,70:fill=correlated",
  "fwd:index=128:gate=none:w0:h64/4:d128/128:s128x16+0+1:q=16,8:kv=5000,2047",
  "fwd:index=128:gate=none:w0:h4/1:d128/128:s128x16+0+1:q=2300",
  "fwd:index=32:s16x6+1+2:q=500:fill=constant", "fwd:index=256:f16:h16/1:d128/128:q=700:fill=large",
  "fwd:index=64:branches=2:q=300:layout=strided:slack=30", "fwd:index=64:sel=blocks:q=300",
  "fwd:index=64:q=300:layout=heads:nobatch", "select:index=64:q=700:s32x6+1+2",
  "select:index=64:q=700:s32x6+0+0:fill=constant", "future:index=64:q=500:h16/2:s32x6+1+2",
  "repeat:index=64:q=700,33:h16/2", "all_blocks:index=64:q=250:s64x4+1+2:h16/1:d128/128",
  "bwd:index=64:q=300,20", "bwd:index=64:gate=none:w0:h64/4:d128/128:s128x4+0+1:q=900:saved",
  "fwd:index=64:q=300,20,3:kv=300,50,3:ilse:slack=9",
  "fwd:index=128:gate=none:w0:h64/4:d128/128:s128x16+0+1:q=900:kv=3000:fill=correlated:ilse",
  "fwd:index=24:h6/3:f16:sel=blocks:q=90:ilse:nobatch",
  "fwd:index=256:h4/2:s16x40+1+1:sel=blocks.shared:q=700:layout=strided:ilse",
  "kl:index=64:q=300,20", "kl:index=128:gate=none:w0:h16/1:d128/128:s128x4+0+1:q=900,33",
  "kl:index=128:gate=none:w0:h64/4:d128/128:s128x16+0+1:q=16,8:kv=5000,2047",
  "kl:index=24:h6/3:q=5,127:kv=700,130:kv=branches:f32grads",
  "kl:index=64:f16:h4/4:s16x6+1+2:l16/16:q=500:accumulate", "kl:index=256:d256/64:q=200:h5/1",
  "kl:index=40:d72/64:h64/1:s48x3+0+1:l16/16:q=150:layout=strided:slack=30",
  "kl:index=64:h4/2:s320x2+0+1:q=700:nobatch:f32grads",
  "kl:index=64:h8/2:s320x2+0+1:q=400:nobatch:f32grads",
  "kl:index=64:h64/1:d72/64:s128x2+0+1:q=60:kv=300",
  "kl:index=40:f16:h12/2:s96x2+0+1:q=90,0,30:kv=200,9,30:layout=strided:slack=9:accumulate",
  "kl:index=64:h2/1:sel=blocks:q=300", "kl:index=64:h6/3:sel=blocks.shared:q=300,9:kv=300,40",
  "kl:index=64:q=0,5,130:kv=9,0,130:slack=9", "kl:index=64:q=0:kv=9",
  "kl:index=64:q=40:kv=9:accumulate", "kl:index=64:sel=all:q=300,20:slack=9",
  "kl:index=128:gate=none:w0:h64/4:d128/128:s128x16+0+1:sel=all:q=1500",
  "kl:index=128:gate=none:w0:h16/1:d128/128:s128x4+0+1:sel=all:q=500,33:kv=900,40:f32grads",
  "kl:index=24:h6/3:f16:sel=all:q=5,127,9:kv=700,130,3:kv=branches:accumulate",
  "kl:index=256:d256/64:h5/1:sel=all:q=200:nobatch", "kl:index=64:sel=all:q=0:kv=9",
  "kl:index=128:gate=none:w0:h64/4:d128/128:s128x16+0+1:q=6000:fill=correlated:f32grads",
  "compress:cmp=keys:q=200,31", "compress:cmp=keys:phi=mlp.32.silu:q=200",
  /* stages alone */
  "compress:q=200,31,0,65", "compress:q=77,301:layout=strided:h16/4:d128/64",
  "compress:phi=linear:q=300", "compress:phi=mlp.64.silu:q=300:f16", "select:q=700:s32x6+1+2",
  "select:q=700:s32x6+0+0:fill=constant", "select:q=4096:s64x16+1+2",
  "select:q=5,100:kv=2000,40:s32x16+2+3", "dense:q=200,1,0,77", "dense:h16/1:d192/128:q=1000",
  "dense:h7/1:d64/64:q=5,90:kv=300,20:f16", "dense:h64/4:d128/128:q=8192",
  "dense:gemm:nobatch:h16/2:d128/128:q=1000",
  /* gradients: groups, head dims, edges, layouts; long enough that lists and windows fill tiles,
   * and that lists of the first block are split */
  "bwd:q=200", "bwd:h16/1:d128/128:s64x16+1+2:w512:q=1500", "bwd:h64/4:d128/128:w512:q=700,33",
  "bwd:h4/4:d64/64:s16x6+1+2:l16/16:q=900:f16", "bwd:h3/1:d24/40:q=300:gate=weights",
  "bwd:h7/1:d192/128:s48x5+1+2:l16/16:q=400:kv=branches", "bwd:d256/256:q=300",
  "bwd:d256/16:q=130:w40", "bwd:d16/256:q=300:f16", "bwd:h64/1:d64/64:q=150:s128x2+0+1",
  "bwd:h2/2:d64/64:s32x4+1+1:q=3000:f32grads", "bwd:q=0,5,130:kv=9,0,130:slack=9:layout=strided",
  "bwd:q=40:kv=9", "bwd:q=5:kv=0", "bwd:q=1,31,32,47,48,63,64,65:f32grads:accumulate",
  "bwd:q=1,3,90:kv=300,77,200:accumulate", "bwd:q=200:nobatch:layout=heads:gate=logits.f32",
  "bwd:q=300,21:layout=shared:h8/4", "bwd:q=300:layout=packed", "bwd:w0:q=200", "bwd:w1:q=200",
  "bwd:s64x0+0+0:q=200", "bwd:s64x0+0+0:w0:q=200", "bwd:branches=1:q=300",
  "bwd:branches=2:q=300:kv=branches", "bwd:branches=5:q=300", "bwd:phi=external:q=200,20,77",
  "bwd:phi=external:branches=6:q=90:slack=50:f32grads", "bwd:sel=blocks:q=300,44",
  "bwd:sel=blocks.shared:h6/3:q=300", "bwd:q=700:fill=correlated:l64/8", "bwd:q=300:scale=0.3",
  "bwd:h16/1:d128/128:s64x6+1+2:w100:q=300,33:mma", "bwd:d192/128:q=300:mma",
  "bwd:d256/200:q=130:mma", "bwd:q=200:wanted=1", "bwd:q=200:wanted=2",
  "bwd:q=200:wanted=4:phi=external", "bwd:q=200:wanted=8:saved",
  "bwd:q=200:wanted=10:kv=branches:saved", "bwd:q=0:kv=9",
  "bwd:h16/1:d128/128:s64x6+1+2:w100:q=300,33:saved",
  "bwd:q=0,5,130:kv=9,0,130:slack=9:layout=strided:saved", "bwd:q=40:kv=9:saved:accumulate",
  "bwd:branches=6:q=200:saved:f32grads:gate=weights", "bwd:branches=1:q=200:saved:kv=branches",
  "bwd:phi=external:q=200,20:saved:h3/1:d24/40",
  /* d_o in f32; the forward's outputs recomputed, or used */
  "bwd:q=300,33:f32dout", "bwd:q=0,5,130:kv=9,0,130:slack=9:layout=strided:f32dout:f32grads",
  "bwd:q=200:saved:recompute=always", "bwd:q=200,77:saved:recompute=never",
  /* the gate MLP: one layer, two, tokens after the last sequence, rows before the first key */
  "bwd:gate=mlp.64.0.silu:q=300,20", "bwd:gate=mlp.64.32.gelu:q=300,20:seed=2",
  "bwd:gate=mlp.40.24.relu:h3/1:q=200:nobatch:f32grads:seed=4",
  "bwd:gate=mlp.128.64.silu:q=5,0,130:kv=9,3,130:slack=40:layout=strided:accumulate:seed=2",
  "bwd:gate=mlp.64.32.silu:q=200:branches=5:f16", "bwd:gate=mlp.64.32.gelu:q=100:wanted=8",
  "bwd:gate=mlp.256.0.silu:h64/4:d128/128:w512:q=3000", "bwd:gate=mlp.64.16.relu:q=0:kv=9:seed=2",
  "bwd:gate=mlp.64.32.gelu:q=100:wanted=7", "bwd:gate=mlp.64.32.silu:q=300:saved",
  /* no gates */
  "bwd:gate=none:q=300,20", "bwd:gate=none:h16/1:d128/128:s64x6+1+2:w100:q=300,33",
  "bwd:gate=none:h32/2:d128/128:s64x6+1+2:w200:q=300,33:saved:kv=branches",
  "bwd:gate=none:h3/1:d24/40:q=200:mma:f32grads:branches=5",
  /* phi with weights */
  "bwd:phi=linear:q=300,77", "bwd:phi=linear:q=300,77:seed=2",
  "bwd:phi=mlp.32.gelu:q=300,77:seed=2", "bwd:phi=mlp.48.relu:f16:q=300",
  "bwd:phi=mlp.64.silu:h16/2:d128/64:q=700,33:kv=branches:seed=2",
  "bwd:phi=linear:h64/4:d128/128:w512:q=2000:seed=2",
  "bwd:phi=linear:q=5,0,130:kv=90,3,130:slack=40:layout=strided:accumulate:f32grads:seed=2",
  "bwd:phi=mlp.16.silu:q=5,0,130:kv=90,3,130:slack=40:layout=heads:accumulate:seed=4",
  "bwd:phi=linear:branches=6:q=90:seed=2", "bwd:phi=mlp.16.relu:branches=6:q=90:accumulate:seed=2",
  "bwd:phi=linear:q=31:seed=2", "bwd:phi=mlp.16.gelu:q=0:kv=90:seed=2",
  "bwd:phi=linear:q=300:wanted=16:seed=2", "bwd:phi=mlp.32.silu:q=300:wanted=16:seed=2",
  "bwd:phi=mlp.32.silu:q=300:wanted=2:seed=2", "bwd:phi=linear:q=300:wanted=4",
  "bwd:phi=linear:q=300,200:saved:seed=2", "bwd:phi=linear:q=300:mma:l16/16:layout=shared:h8/4",
  "bwd:phi=mlp.32.gelu:gate=mlp.64.32.silu:sel=ranges:q=200,77:f32dout:seed=2",
  /* token ranges: shared, several in a tile of keys, long ones, unaligned */
  "bwd:sel=ranges:q=300,40", "bwd:sel=ranges.shared:h6/3:q=300",
  "bwd:sel=ranges:h4/4:d24/40:s16x40+1+2:l16/16:q=900:gate=weights",
  "bwd:sel=ranges:h16/1:d128/128:s64x16+1+2:q=1500:branches=2",
  "bwd:sel=ranges:q=5,0,130:kv=9,3,130:slack=9:layout=strided:f32grads:accumulate",
  "bwd:sel=ranges:q=3,90:kv=300,77:saved", "bwd:sel=ranges:d192/128:q=300:kv=branches",
  "bwd:sel=ranges:d256/256:q=300:mma", "bwd:sel=ranges:s64x256+1+2:q=700:branches=2:f16",
  "bwd:sel=ranges:q=0:kv=9", "bwd:cmp=keys:q=300,20",
  "bwd:cmp=keys:phi=linear:gate=mlp.64.32.silu:q=200,9:seed=2",
  "bwd:cmp=keys:pool=max:norm=128/64:gate=none:w0:h32/2:d128/128:s64x6+1+2:q=700:saved",
  "bwd:cmp=keys:phi=external:q=200", "bwd:pool=max:norm=64/32:q=300:accumulate",
  /* kernels that share rows and keys: groups, sequences that end within a tile, windows that
   * begin within one, tiles of keys that only some rows see */
  "bwd:h32/2:d128/128:s64x6+1+2:w200:q=300,33,0,5:kv=900,70,9,5:slack=7:layout=strided",
  "bwd:h64/2:d64/64:s64x4+1+2:q=400,70:gate=weights:saved",
  "bwd:h64/1:d128/128:s64x16+1+2:w512:q=1100,77", "bwd:h24/2:d128/96:s64x6+1+2:q=700:f16",
  "bwd:h8/1:d96/128:s64x6+1+2:q=700,1,64:kv=branches:accumulate",
  "bwd:h8/2:d128/128:s64x16+1+2:w512:q=1500:saved", "bwd:h4/2:d128/128:s64x6+1+2:w300:q=900,77",
  "bwd:h16/1:d128/128:s64x6+1+2:w0:q=1300:saved", "bwd:h16/1:d128/128:branches=1:q=2500",
  "bwd:h16/1:d128/128:branches=4:w512:q=1400,40", "bwd:h16/1:d128/128:s128x4+1+1:w1:q=900",
  "bwd:h16/1:d128/128:s64x6+1+2:w130:q=600:phi=external:kv=branches:saved",
  "bwd:h32/2:d128/128:s64x16+1+2:w512:q=1900:sel=blocks.shared:layout=shared",
  "bwd:h32/2:d128/128:s64x6+1+2:w0:q=1300,33:slack=9000:again=20",
  "bwd:h32/2:d128/128:s64x6+1+2:w0:q=900,33:slack=9000:sel=blocks.shared:layout=shared",
  "bwd:h16/1:d192/128:s64x6+1+2:w200:q=700,33", "bwd:h8/2:d136/88:s64x6+1+2:q=500:saved:f16",
  "bwd:h16/1:d128/128:s64x16+1+2:w512:q=3000:again=100", "bwd:h16/2:q=1500,33:saved:again=100",
  /* properties */
  "repeat:q=700,33:h16/2", "all_blocks:q=250:s64x4+1+2:h16/1:d128/128", "wide:q=500:w512:h16/1",
  "future:q=500:h16/2:s32x6+1+2:fill=correlated", "permute:q=500:h16/2:s32x6+1+2:sel=blocks",
  "scale_v:q=500:h16/2", "zero_gate:q=500:h16/2:gate=weights", "infinite:q=500:h16/2:s32x6+1+2",
  "infinite:q=3,700:kv=0,700:h64/4:d128/128:lists", "infinite:q=300:f16:kv=branches",
  "split:q=150:s32x4+1+1", "graph:q=700,33:h16/2",
  "graph:phi=mlp.32.silu:gate=mlp.64.32.relu:q=200,77", "graph:q=300:phi=linear:gate=mlp.64.0.silu",
  "streams:q=2000:h16/2", "needle:h16/1:d128/128:s64x16+1+2:w512:q=1:kv=65536", 0
};

const char *const chk_short_cases[] = {
  "fwd:q=200",
  "fwd:kv=branches:q=0,5,130:kv=9,0,130:slack=9:layout=strided",
  "fwd:h3/1:d24/40:f16:q=70,33:layout=heads:phi=linear",
  "fwd:q=90:layout=packed:phi=mlp.16.gelu",
  "fwd:q=90,50:phi=external:gate=mlp.32.16.relu",
  "fwd:q=200:sel=ranges:gate=weights.f32",
  "fwd:q=200:sel=blocks.shared:branches=3",
  "fwd:q=300:s32x6+0+0:fill=constant",
  "compress:q=100,40",
  "bwd:q=70,0,20:kv=70,9,33:slack=5:layout=strided:f32grads:accumulate",
  "bwd:q=60:phi=external:kv=branches:sel=blocks:branches=3:gate=weights.f32",
  "bwd:q=60,9:phi=mlp.16.gelu:gate=mlp.32.16.silu:sel=ranges:f32dout:slack=7:seed=2",
  "fwd:q=100:gate=none",
  "fwd:q=200,90:cmp=keys:pool=max:norm=64/32:s32x4+1+1",
  "fwd:q=150:pool=max:norm=32/32:s32x3+0+1",
  "fwd:q=150:cmp=keys:phi=external:s32x3+0+1",
  "bwd:q=60,20:cmp=keys:norm=32/16",
  "fwd:q=200,90:index=32:s16x5+1+1:kv=branches",
  "fwd:q=150:index=32:s16x4+0+1:w0:gate=none:fill=constant",
  "fwd:q=5,40:kv=200,90:index=24:s16x4+0+1:f16:layout=strided:slack=9",
  "fwd:q=40,3,0:kv=90,9,0:index=40:s16x4+0+1:ilse:slack=3",
  "fwd:q=60:index=16:s16x4+0+1:sel=blocks:f16:ilse",
  "select:q=150:index=16:s16x4+0+1",
  "future:q=120:index=32:s16x3+1+1",
  "split:q=70:index=32:s16x3+0+1",
  "fwd:q=1,3,226:kv=226,300,226:index=24:h12/3:l2/2:s6x8+1+0:w0:gate=none:f16",
  "bwd:q=60,20:index=32:s16x3+0+1",
  "bwd:q=60:gate=none",
  "bwd:q=60:phi=linear:gate=mlp.32.0.silu:accumulate:saved:recompute=never:seed=2",
  "select:q=200:s32x4+1+1:fill=constant",
  "dense:q=100:kv=90",
  "repeat:q=100",
  "all_blocks:q=150:s64x4+1+2",
  "wide:q=100:w128",
  "future:q=120:s32x3+1+1",
  "permute:q=150:s32x4+1+1:sel=blocks",
  "scale_v:q=100",
  "zero_gate:q=100:gate=weights",
  "infinite:q=5,100:kv=0,100",
  "split:q=70:s32x2+1+1",
  "streams:q=64",
  "needle:h2/1:d64/64:s32x8+1+2:w64:q=1:kv=2048",
  0
};

/* A KV length that is likely to be an edge case. */
#define LONGEST 600 /* tokens of a sequence, unless blocks are long */

static int64_t random_length(nsai_verify_random *random, const nsai_model *g, int64_t longest) {
  switch (nsai_verify_pick(random, 0, 7)) {
  case 0: return nsai_verify_pick(random, 0, 1);
  case 1: return g->block - nsai_verify_pick(random, 0, 1);
  case 2:
    return (int64_t)g->select_block * nsai_verify_pick(random, 1, 3) +
           nsai_verify_pick(random, -1, 1);
  case 3:
    return g->block + g->stride * nsai_verify_pick(random, 0, 9) + nsai_verify_pick(random, -1, 0);
  default: return nsai_verify_pick(random, 1, longest);
  }
}

/* Turns a case into a backward pass. */
static void random_backward(nsai_verify_random *random, nsai_verify_case *c) {
  nsai_model *g = &c->model;
  c->kind = NSAI_VERIFY_BACKWARD;
  bool layers = nsai_phi_has_weights(g) || g->gate == NSAI_GATE_MLP;
  c->grads_f32 = (int32_t)nsai_verify_pick(random, 0, 1);
  c->accumulate = nsai_verify_pick(random, 0, 2) == 0;
  c->saved = nsai_verify_pick(random, 0, 2) == 0 && !layers;
  c->mma = nsai_verify_pick(random, 0, 3) == 0;
  if (nsai_verify_pick(random, 0, 3) == 0) c->wanted = (uint32_t)nsai_verify_pick(random, 1, 31);
  c->d_o_f32 = nsai_verify_pick(random, 0, 3) == 0;
  int64_t recompute = nsai_verify_pick(random, 0, 5);
  if (recompute == 0) c->recompute = NSAI_RECOMPUTE_ALWAYS;
  if (recompute == 1 && c->saved) c->recompute = NSAI_RECOMPUTE_NEVER;
}

/* Multiply-adds of one forward pass that a random problem may cost the float64 reference, which
 * takes up to 1 ns for each; a backward pass costs several times as much. */
#define MOST_COST 5e8
#define LEAST_QUERIES 16 /* of the only sequence of a problem that costs more */

double chk_case_cost(const nsai_verify_case *c) {
  const nsai_model *g = &c->model;
  double cost = nsai_verify_case_cost(c), block = 0, token = 0;
  if (nsai_phi_has_weights(g))
    block = (double)g->kv_heads * g->block * (g->head_dim_qk + g->head_dim_v) *
            (g->phi == NSAI_PHI_MLP ? g->phi_hidden : (g->head_dim_qk + g->head_dim_v) / 2);
  if (g->gate == NSAI_GATE_MLP)
    token = (double)g->gate_hidden * (g->gate_channels + 3 * g->heads) +
            (g->gate_hidden ? 0 : 3.0 * g->gate_channels * g->heads);
  for (int32_t s = 0; s < c->num_seqs; s++)
    cost += (double)nsai_block_count(g, c->kv_len[s]) * block + (double)c->q_len[s] * token;
  return cost;
}

/* Multiply-adds of a warm-up's index_kl. */
static double warm_up_cost(const nsai_verify_case *c) {
  const nsai_model *g = &c->model;
  double pairs = 0;
  for (int32_t s = 0; s < c->num_seqs; s++) pairs += (double)c->q_len[s] * (double)c->kv_len[s];
  return pairs *
         (g->heads * (2 * g->head_dim_qk + g->head_dim_v) + 3.0 * g->index_heads * g->index_dim);
}

/* Turns a case whose model has an index into the training of that. */
static void random_index_kl(nsai_verify_random *random, nsai_verify_case *c) {
  c->kind = NSAI_VERIFY_INDEX_KL;
  c->branches = 0;
  c->grads_f32 = (int32_t)nsai_verify_pick(random, 0, 1);
  c->accumulate = nsai_verify_pick(random, 0, 2) == 0;
  if (nsai_verify_pick(random, 0, 2) || warm_up_cost(c) > MOST_COST) return;
  c->selection = NSA_SELECT_ALL;
  c->index_shared = 0;
}

static void random_lengths(nsai_verify_random *random, int64_t longest, nsai_verify_case *c) {
  c->num_seqs = (int32_t)nsai_verify_pick(random, 1, 8);
  for (int32_t s = 0; s < c->num_seqs; s++) {
    int64_t kv = random_length(random, &c->model, longest), q = kv;
    int64_t opts = nsai_verify_pick(random, 0, 5);
    if (opts == 0) q = nsai_verify_pick(random, 0, kv); /* a chunk, or a few new tokens */
    /* rows before the sequence's first token */
    if (opts == 1) q = kv + nsai_verify_pick(random, 0, 20);
    if (opts == 2) q = kv < 4 ? kv : nsai_verify_pick(random, 1, 4);
    c->q_len[s] = q;
    c->kv_len[s] = kv;
  }
  while (c->num_seqs > 1 && chk_case_cost(c) > MOST_COST) c->num_seqs--;
  /* Then the last queries of a long sequence, which see all of it. */
  while (c->q_len[0] > LEAST_QUERIES && chk_case_cost(c) > MOST_COST) c->q_len[0] /= 2;
}

/* Whether q, k and v can be slices of one buffer, which have the same lengths. */
static bool can_be_packed(const nsai_verify_case *c) {
  nsai_verify_case packed = *c;
  memcpy(packed.q_len, c->kv_len, sizeof packed.q_len);
  return !c->model.per_branch && chk_case_cost(&packed) <= MOST_COST;
}

static void random_layout(nsai_verify_random *random, nsai_verify_case *c) {
  do c->layout = (nsai_verify_layout)nsai_verify_pick(random, 0, NSAI_VERIFY_LAYOUTS - 1);
  while (c->layout == NSAI_VERIFY_LAYOUT_PACKED && !can_be_packed(c));
  if (c->layout == NSAI_VERIFY_LAYOUT_PACKED)
    for (int32_t s = 0; s < c->num_seqs; s++) c->q_len[s] = c->kv_len[s];
  c->slack = nsai_verify_pick(random, 0, 2) ? 0 : nsai_verify_pick(random, 1, 100);
  c->overlap = nsai_verify_pick(random, 0, 1) == 0;
  c->no_batch = c->num_seqs == 1 && !c->slack && nsai_verify_pick(random, 0, 1);
}

/* A problem of the case's model. */
static void random_problem(nsai_verify_random *random, int64_t longest, nsai_verify_case *c) {
  const nsai_model *g = &c->model;
  c->seed = nsai_verify_bits(random->key, random->next++) % 1000000;
  random_lengths(random, longest, c);
  c->gate_f32 = nsai_gate_is_given(g) && nsai_verify_pick(random, 0, 1);
  c->fill = nsai_verify_pick(random, 0, 1) ? NSAI_VERIFY_FILL_CORRELATED : NSAI_VERIFY_FILL_RANDOM;
  random_layout(random, c);
  int64_t selection = nsai_verify_pick(random, 0, 5);
  if (g->select_count && selection < 2) {
    c->selection = selection ? NSA_SELECT_BLOCKS : NSA_SELECT_RANGES;
    c->index_shared = (int32_t)nsai_verify_pick(random, 0, 1);
  }
  /* Some of the branches that the model has; if the pick leaves none, 0: all. */
  if (nsai_verify_pick(random, 0, 7) == 0)
    c->branches = (uint32_t)nsai_verify_pick(random, 1, 7) & nsai_branches(g);
  if (nsai_verify_pick(random, 0, 7) == 0) c->softmax_scale = 0.2f;
  if (g->by == NSAI_BY_INDEX && c->selection != NSA_SELECT_RANGES && nsai_verify_pick(random, 0, 1))
    random_index_kl(random, c);
  else if (g->by == NSAI_BY_INDEX && c->selection != NSA_SELECT_RANGES)
    c->index_lse = (int32_t)nsai_verify_pick(random, 0, 1);
  else if (nsai_verify_pick(random, 0, 3) == 0)
    random_backward(random, c);
}

void chk_case_random(uint64_t seed, int64_t number, nsai_verify_case *c) {
  nsai_verify_random random = { nsai_verify_key(seed, (uint64_t)number), 0 };
  nsai_verify_case_init(c);
  chk_model_random(random.key, &c->model);
  random_problem(&random, LONGEST, c);
}

void chk_case_random_of(uint64_t model, uint64_t seed, int64_t number, nsai_verify_case *c) {
  nsai_verify_random random = { nsai_verify_key(nsai_verify_key(model, seed), (uint64_t)number),
                                0 };
  nsai_verify_case_init(c);
  chk_model_random(model, &c->model);
  random_problem(&random, LONGEST, c);
}

int64_t chk_longest_of(const nsai_model *model) {
  return nsai_smaller(2 * (int64_t)model->select_count * model->select_block, 1 << 20);
}

void chk_case_random_given(const nsai_model *model, uint64_t seed, int64_t number,
                           nsai_verify_case *c) {
  nsai_verify_random random = { nsai_verify_key(seed, (uint64_t)number), 0 };
  nsai_verify_case_init(c);
  c->model = *model;
  random_problem(&random, nsai_larger(LONGEST, chk_longest_of(model)), c);
}
