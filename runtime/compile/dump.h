/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Output for developers: the numbered source in the log, and files of every compiled unit.
 */
#ifndef NSAI_COMPILE_DUMP_H
#define NSAI_COMPILE_DUMP_H

#include "compile/compiler.h"

/* Logs the unit at ERROR, with line numbers as the compiler counts them. */
void nsai_compiler_log_source(nsai_logger *logger, const nsai_compile_request *request);

/* Writes <folder>/<name>.<arch>.{cu,log,ptx,cubin}, those of them that the program has. A file
 * that cannot be written gives one warning: dumps never fail a compilation. */
void nsai_compiler_dump(nsai_logger *logger, const char *folder,
                        const nsai_compile_request *request, const nsai_nvrtc *nvrtc,
                        nsai_nvrtc_program program);

#endif /* NSAI_COMPILE_DUMP_H */
