/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What gnulib's argp.h and argp-*.c want of a configure script, for musl with gcc. Its text stands
 * before the installed argp.h, too. HAVE_CONFIG_H: gnulib's own files are compiled, whose getopt gets
 * names besides musl's.
 */
#ifndef ARGP_CONFIG_H
#define ARGP_CONFIG_H

#define _GL_INLINE inline
#define _GL_EXTERN_INLINE extern inline
#define _GL_INLINE_HEADER_BEGIN
#define _GL_INLINE_HEADER_END
#define _GL_ATTRIBUTE_DEALLOC(function, argument)
#define _GL_ATTRIBUTE_FORMAT(spec) __attribute__((__format__ spec))
#define _GL_ATTRIBUTE_SPEC_PRINTF_STANDARD __printf__
#define _GL_ATTRIBUTE_SPEC_PRINTF_SYSTEM __printf__
#define _GL_UNUSED __attribute__((unused))

#ifdef HAVE_CONFIG_H
#include <stdalign.h>
#include <stdbool.h>
#define GNULIB_ARGP_DISABLE_DIRNAME 1
#define HAVE_DECL_PROGRAM_INVOCATION_NAME 1
#define HAVE_DECL_PROGRAM_INVOCATION_SHORT_NAME 1
#define HAVE_MEMPCPY 1
#define HAVE_STRCHRNUL 1
#define __getopt_argv_const const
#define getopt argp_getopt
#define getopt_long argp_getopt_long
#define getopt_long_only argp_getopt_long_only
#define optarg argp_optarg
#define optind argp_optind
#define opterr argp_opterr
#define optopt argp_optopt
#endif

#endif
