/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A communicator's own stream, in which raw K and V travel while a run computes in its stream.
 */
#include "ranks/comm_internal.h"

#define MOST_SMS 64 /* NCCL has at most so many CTAs for an exchange */

nsa_status nsai_side_stream_check_option(int32_t overlap_sms) {
  const bool is_power = !(overlap_sms & (overlap_sms - 1));
  if (overlap_sms >= 0 && overlap_sms <= MOST_SMS && is_power) return NSA_OK;
  /* NCCL rounds the CTAs of sends and receives up. */
  return nsai_fail(NSA_E_ARG,
                   "options.overlap_sms is %d: give a power of two up to %d, or 0, with which "
                   "nothing overlaps",
                   overlap_sms, MOST_SMS);
}

/* Of the greatest priority: kernels that are not persistent take every multiprocessor, and CTAs of the transport
 * get the first ones that become free. */
static nsa_status create_stream(const nsai_driver *driver, nsai_cu_stream *stream) {
  int least = 0, greatest = 0;
  if (!driver->cuCtxGetStreamPriorityRange || !driver->cuStreamCreateWithPriority)
    return NSAI_CUDA(driver, cuStreamCreate(stream, NSAI_CU_STREAM_NON_BLOCKING));
  NSAI_TRY(NSAI_CUDA(driver, cuCtxGetStreamPriorityRange(&least, &greatest)));
  return NSAI_CUDA(driver,
                   cuStreamCreateWithPriority(stream, NSAI_CU_STREAM_NON_BLOCKING, greatest));
}

nsa_status nsai_side_stream_open(nsa_comm *comm) {
  nsai_side_stream *side = &comm->side;
  if (!(side->sms || comm->peers.copy_bytes) || !comm->place.device) return NSA_OK;
  const nsai_driver *driver = comm->place.device->driver;
  if (!side->forked)
    NSAI_TRY(NSAI_CUDA(driver, cuEventCreate(&side->forked, NSAI_CU_EVENT_NO_TIMING)));
  if (!side->joined)
    NSAI_TRY(NSAI_CUDA(driver, cuEventCreate(&side->joined, NSAI_CU_EVENT_NO_TIMING)));
  return side->stream ? NSA_OK : create_stream(driver, &side->stream);
}

void nsai_side_stream_close(nsa_comm *comm) {
  const nsai_side_stream *side = &comm->side;
  nsai_comm_entered entered;
  if (!side->forked || nsai_comm_enter(&comm->place, &entered) != NSA_OK) return;
  const nsai_driver *driver = comm->place.device->driver;
  if (side->stream) driver->cuStreamDestroy(side->stream);
  if (side->joined) driver->cuEventDestroy(side->joined);
  driver->cuEventDestroy(side->forked);
  nsai_comm_leave(&comm->place, &entered);
}

int32_t nsai_comm_overlap_sms(const nsa_comm *comm) {
  return comm->side.stream ? comm->side.sms : 0;
}

nsa_status nsai_comm_fork(nsa_comm *comm, nsa_stream stream, nsa_stream *side) {
  const nsai_driver *driver = comm->place.device->driver;
  *side = comm->side.stream;
  NSAI_TRY(NSAI_CUDA(driver, cuEventRecord(comm->side.forked, stream)));
  return NSAI_CUDA(driver, cuStreamWaitEvent(*side, comm->side.forked, 0));
}

nsa_status nsai_comm_join(nsa_comm *comm, nsa_stream stream) {
  const nsai_driver *driver = comm->place.device->driver;
  NSAI_TRY(NSAI_CUDA(driver, cuEventRecord(comm->side.joined, comm->side.stream)));
  return NSAI_CUDA(driver, cuStreamWaitEvent(stream, comm->side.joined, 0));
}
