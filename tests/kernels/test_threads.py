"""Which threads work: in a forked child, which has no others, the calling one alone."""

from __future__ import annotations

from tests.kernels.subprocesses import run_python


def test_a_forked_child_scores_and_trains_with_the_bits_of_its_parent() -> None:
    process = run_python("-m", "tests.kernels.forked_child", OMP_NUM_THREADS="2")
    assert process.returncode == 0, process.stderr
