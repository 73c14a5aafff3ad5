/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What a translated kernel and the emulated driver agree on.
 */
#ifndef NSA_EMULATOR_SHAPE_H
#define NSA_EMULATOR_SHAPE_H

#define EMULATOR_MOST_THREADS 1024 /* of a CTA */
#define EMULATOR_MOST_CLUSTER 16   /* CTAs */
#define EMULATOR_STACK_BYTES (512u << 10)
/* The windows of shared memory, one for each CTA of a cluster, where 32 bits address them. */
#define EMULATOR_SHARED_AT 0x20000000u
#define EMULATOR_SHARED_EACH (1u << 20)

/* Lets a launch of another thread run, of which the kernel waits for a word in memory. The window of shared
 * memory may then be another's, and so may the kernel's static variables. */
typedef void (*emulator_pause_fn)(void);

/* What a kernel's library exports: emulator_launch and emulator_params_bytes. */
typedef void (*emulator_launch_fn)(const void *params, unsigned grid_x, unsigned grid_y,
                                   int threads, unsigned shared_bytes, void *stacks,
                                   emulator_pause_fn pause);

#endif /* NSA_EMULATOR_SHAPE_H */
