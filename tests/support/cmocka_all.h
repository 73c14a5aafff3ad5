/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * cmocka, after the headers that it requires, and the headers of the C library that most tests use.
 */
#ifndef NSA_TEST_CMOCKA_ALL_H
#define NSA_TEST_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#endif /* NSA_TEST_CMOCKA_ALL_H */
