/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks/merge.h"

#include <string.h>

void chk_merge(const nsai_verify_result *rank, nsai_verify_result *all) {
  if (rank->text[0] && !strstr(all->text, rank->text)) nsai_verify_note(all, "%s", rank->text);
  if (rank->outcome == NSAI_VERIFY_FAILED || all->outcome == NSAI_VERIFY_PASSED)
    all->outcome = rank->outcome;
  if (!all->variants[0]) memcpy(all->variants, rank->variants, sizeof all->variants);
  for (int i = 0; i < rank->figures; i++) {
    int j = 0;
    while (j < all->figures && strcmp(all->figure[j].name, rank->figure[i].name) != 0) j++;
    if (j == all->figures)
      all->figure[all->figures++] = rank->figure[i];
    else if (!(rank->figure[i].value <= all->figure[j].value))
      all->figure[j] = rank->figure[i];
  }
}
