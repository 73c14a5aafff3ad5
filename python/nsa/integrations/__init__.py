# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Other projects' models on libnsa. Each module imports its project; this one imports none."""
