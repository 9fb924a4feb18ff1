"""Triton kernels on the CPU: collected where TRITON_INTERPRET=1 is set before the process starts, by `make test`.

Triton asks for it when it is imported, so that no process can run kernels both ways. Its interpreter gets bfloat16
wrong: these tests are of float32 and float16.
"""

from __future__ import annotations

from crossret_kernels.backends import INTERPRETED

collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]
