"""Entry point of the `crossret` command: says which packages are missing before anything imports them."""

from __future__ import annotations

import importlib.util
import sys

# What the extra `crossret[app]` installs, by the names that Python imports.
APP_MODULES = ("typer", "rich", "PIL", "matplotlib", "safetensors")


def main() -> None:
    """Run the command line; without the extra `app`, one line on stderr and exit code 2."""
    missing = [name for name in APP_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"crossret: {', '.join(missing)} not found; install the extra 'app': pip install 'crossret[app]'",
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        from crossret.cli import main as run

        run()
    except KeyboardInterrupt:  # while modules are imported
        print("crossret: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
