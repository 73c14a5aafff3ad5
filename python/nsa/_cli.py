# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The program nsa-autotune, which is built into the library."""
import ctypes as C
import os
import signal
import sys

from ._library import find_library


def main():
    # The program has its own handling of Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = C.CDLL(find_library()).nsapy_program
    words = [os.fsencode(word) for word in ["nsa-autotune", *sys.argv[1:]]]
    status = program(len(words), (C.c_char_p * (len(words) + 1))(*words, None))
    C.CDLL(None).fflush(None)  # what C has written; Python writes nothing here
    return status


if __name__ == "__main__":
    sys.exit(main())
