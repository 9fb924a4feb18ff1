"""Entry point of the `crossret` command: what has to be done before anything is imported."""

from __future__ import annotations

import importlib.util
import os
import sys

from crossret import signals

# Packages of the extra `crossret[app]`, by the names that Python imports.
APP_MODULES = ("typer", "rich", "PIL", "matplotlib", "safetensors", "filelock", "jinja2", "tomli_w")

# How OpenMP's threads wait for each other: what a user may have chosen, and what is chosen otherwise. A training has
# thousands of small operations a second, and by default threads spin for milliseconds after each. On an idle machine
# that is what is fastest; beside one busy process on two cores, whoever spins keeps the one that is waited for from its
# core, and training takes 3.9 times as long. So short a spin costs a sixth on the idle machine and is 1.9 times as fast
# beside the other: benchmarks/waiting.py.
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_SHORT_SPIN = {"GOMP_SPINCOUNT": "2000"}


def main() -> None:
    """Run the command line; without the extra `app`, one line on stderr and exit code 2."""
    missing = [name for name in APP_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"crossret: {', '.join(missing)} not found; install the extra 'app': pip install 'crossret[app]'",
            file=sys.stderr,
        )
        sys.exit(2)
    if not any(name in os.environ for name in _WAITING):
        os.environ.update(_SHORT_SPIN)  # read when torch is loaded
    signals.end_like_ctrl_c()
    try:
        from crossret.cli import main as run

        run()
    except KeyboardInterrupt:  # while modules are imported
        print(f"crossret: {signals.what_happened()}", file=sys.stderr)
        sys.exit(signals.exit_status())


if __name__ == "__main__":
    main()
