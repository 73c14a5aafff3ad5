/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Prefills over ranks: the new tokens of an append that begins sequences. A shard divides them; a rank
 * computes the rows of its pieces, one piece after the other.
 */
#include "ranks/serve.h"
#include "run/check_tensor.h"

#include <nsa/kv_cache.h>

#include <stdlib.h>
#include <string.h>

bool chk_serve_prefills(const chk_serve *s) {
  /* Fewer tokens over a long context one rank alone splits over keys, in other roundings. */
  return s->most_tokens > 64 || s->o.max_kv_len < 8192;
}

nsa_status chk_prefill_shard(const chk_memory *m, const chk_script *call, nsa_shard **out) {
  int64_t lengths[CHK_SERVE_SEQS];
  nsa_shard_options o = NSA_SHARD_OPTIONS_INIT;
  for (int s = 0; s < m->s->o.seqs; s++) lengths[s] = call->q_len[s];
  o.ranks = m->s->ranks;
  o.num_seqs = m->s->o.seqs;
  o.lengths = lengths;
  return nsa_shard_create(m->prefill.ctx, &o, out);
}

void chk_prefill_take_rows(const nsa_shard *shard, int32_t rank, const uint8_t *from, size_t row,
                           uint8_t *to) {
  for (int32_t i = shard->rank_begin[rank]; i < shard->rank_begin[rank + 1]; i++) {
    const nsa_piece *piece = &shard->pieces[i];
    const size_t bytes = (size_t)piece->length * row;
    memcpy(to, from + (size_t)(shard->seq_begin[piece->sequence] + piece->begin) * row, bytes);
    to += bytes;
  }
}

nsa_status chk_prefill_keep_rows(chk_memory *m, const nsa_shard *shard) {
  static const int inputs[] = { CHK_SERVE_Q, CHK_SERVE_INDEX_Q, CHK_SERVE_GATE, CHK_SERVE_BLOCKS };
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
    chk_serve_tensor *t = &m->tensor[inputs[i]];
    if (!t->memory.device) continue;
    uint8_t *image = t->memory.image + NSAI_VERIFY_GUARD, *all = malloc(t->memory.bytes + 1);
    if (!all) return nsai_fail_nomem("rows of a prefill", t->memory.bytes);
    memcpy(all, image, t->memory.bytes);
    memset(image, 0xff, t->memory.bytes);
    chk_prefill_take_rows(shard, m->rank, all, chk_serve_row_bytes(t), image);
    free(all);
    NSAI_TRY(nsai_verify_buffer_upload(m->device, &t->memory));
  }
  return NSA_OK;
}
