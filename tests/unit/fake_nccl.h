/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What NCCL without hardware (fake_nccl.c) records. fake_nccl_record gives a test the record of the
 * module that the library has opened.
 */
#ifndef TEST_FAKE_NCCL_H
#define TEST_FAKE_NCCL_H

typedef struct fake_nccl_state {
  int comms;       /* communicators that exist */
  int aborted;     /* ended by ncclCommAbort */
  int destroyed;   /* ended by ncclCommDestroy */
  int fail_group;  /* the n-th ncclGroupEnd from now fails; 0: none */
  int async_error; /* what ncclCommGetAsyncError reports; 0: nothing */
  int blocks;      /* 1: ncclGroupEnd waits until its communicator has ended */
  int send_ms;     /* that ncclSend takes */
  int sends;       /* calls of ncclSend that have begun */
  int max_ctas;    /* of the configuration of the newest communicator; 0: it has none */
  /* calls on a communicator that has ended (ncclGroupEnd is of none); parts of a group while
   * another is in progress, without a group, or before the ranks are connected; an end in good
   * order meanwhile */
  int wrong_use;
} fake_nccl_state;

/* Exported by the module. */
fake_nccl_state *fake_nccl_record(void);

#endif /* TEST_FAKE_NCCL_H */
