"""Entry point of the `crossret` command: what has to be done before anything is imported."""

from __future__ import annotations

import importlib.util
import os
import sys

from crossret import signals

# What the extra `crossret[app]` installs, by the names that Python imports.
APP_MODULES = ("typer", "rich", "PIL", "matplotlib", "safetensors", "tomli_w")

# How OpenMP's threads wait for each other: what a user may have chosen, and what is chosen otherwise.
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}


def main() -> None:
    """Run the command line; without the extra `app`, one line on stderr and exit code 2."""
    missing = [name for name in APP_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"crossret: {', '.join(missing)} not found; install the extra 'app': pip install 'crossret[app]'",
            file=sys.stderr,
        )
        sys.exit(2)
    # Read when torch is loaded. Threads that spin while they wait take the core from the one that they wait for, as
    # soon as another process is at work on the machine.
    if not any(name in os.environ for name in _WAITING):
        os.environ.update(_PASSIVE)
    signals.end_like_ctrl_c()
    try:
        from crossret.cli import main as run

        run()
    except KeyboardInterrupt:  # while modules are imported
        print(f"crossret: {signals.what_happened()}", file=sys.stderr)
        sys.exit(signals.exit_status())


if __name__ == "__main__":
    main()
