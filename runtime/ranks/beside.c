/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The stream beside a run's stream, in which raw K and V travel while the run computes.
 */
#include "ranks/comm_internal.h"

#define MOST_SMS 64 /* NCCL has at most so many CTAs for an exchange */

nsa_status nsai_beside_check_option(int32_t overlap_sms) {
  if (overlap_sms >= 0 && overlap_sms <= MOST_SMS) return NSA_OK;
  return nsai_fail(
      NSA_E_ARG, "options.overlap_sms is %d: give SMs up to %d, or 0, with which nothing overlaps",
      overlap_sms, MOST_SMS);
}

nsa_status nsai_beside_open(nsa_comm *comm) {
  nsai_beside *b = &comm->beside;
  if (!b->sms || !comm->place.device) return NSA_OK;
  const nsai_driver *driver = comm->place.device->driver;
  if (!b->forked) NSAI_TRY(NSAI_CUDA(driver, cuEventCreate(&b->forked, NSAI_CU_EVENT_NO_TIMING)));
  if (!b->joined) NSAI_TRY(NSAI_CUDA(driver, cuEventCreate(&b->joined, NSAI_CU_EVENT_NO_TIMING)));
  if (!b->stream)
    NSAI_TRY(NSAI_CUDA(driver, cuStreamCreate(&b->stream, NSAI_CU_STREAM_NON_BLOCKING)));
  return NSA_OK;
}

void nsai_beside_close(nsa_comm *comm) {
  const nsai_beside *b = &comm->beside;
  nsai_comm_entered entered;
  if (!b->forked || nsai_comm_enter(&comm->place, &entered) != NSA_OK) return;
  const nsai_driver *driver = comm->place.device->driver;
  if (b->stream) driver->cuStreamDestroy(b->stream);
  if (b->joined) driver->cuEventDestroy(b->joined);
  driver->cuEventDestroy(b->forked);
  nsai_comm_leave(&comm->place, &entered);
}

int32_t nsai_comm_overlap_sms(const nsa_comm *comm) {
  return comm->beside.stream ? comm->beside.sms : 0;
}

nsa_status nsai_comm_fork(nsa_comm *comm, nsa_stream stream, nsa_stream *beside) {
  const nsai_driver *driver = comm->place.device->driver;
  *beside = comm->beside.stream;
  NSAI_TRY(NSAI_CUDA(driver, cuEventRecord(comm->beside.forked, stream)));
  return NSAI_CUDA(driver, cuStreamWaitEvent(*beside, comm->beside.forked, 0));
}

nsa_status nsai_comm_join(nsa_comm *comm, nsa_stream stream) {
  const nsai_driver *driver = comm->place.device->driver;
  NSAI_TRY(NSAI_CUDA(driver, cuEventRecord(comm->beside.joined, comm->beside.stream)));
  return NSAI_CUDA(driver, cuStreamWaitEvent(stream, comm->beside.joined, 0));
}
