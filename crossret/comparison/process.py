"""One step of a variant, training or evaluation, in a process of its own, so that its peak memory is its own.

The process is a program, not a fork or a ``multiprocessing`` spawn; see ``crossret.data.scenes.workers``. It reads its
step as a line of JSON and answers with one; when its input ends, by Ctrl-C or the death of who started it, it stops as
it would at a Ctrl-C of its own: a training leaves a checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crossret import signals
from crossret.comparison.steps import Step, evaluate_variant, train_variant
from crossret.mistakes import mistake

_PROGRAM = "from crossret.comparison.process import serve; serve()"
_STEPS = {"train": train_variant, "evaluate": evaluate_variant}


def run_step(name: str, step: Step) -> dict[str, Any]:
    """What the step returns; its progress is shown on this process's standard error.

    Raises:
        ValueError: the step cannot be done; says why.
        ChildProcessError: the process died.
        KeyboardInterrupt: once the process has stopped, too.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C does not reach it: this process alone acts on it
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(BrokenPipeError):  # a dead process is noticed below, by its silence
            process.stdin.write(json.dumps({"name": name, "step": asdict(step)}, default=str).encode() + b"\n")
            process.stdin.flush()
        lines = process.stdout.read().splitlines()
        status = process.wait()
        answer = json.loads(lines[-1]) if lines and status == 0 else None
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait()
        except KeyboardInterrupt:  # the second: not even a checkpoint is wanted
            process.kill()
            process.wait()
            raise
        finally:
            process.stdout.close()
    if answer is None:
        raise ChildProcessError(f"the process to {name} it {signals.how_it_ended(status)}")
    if "error" in answer:
        raise ValueError(answer["error"])
    result: dict[str, Any] = answer["result"]
    return result


def serve() -> None:
    """Do the step on stdin; exit with 130 where it was interrupted, or as ``signals`` says."""
    signals.end_like_ctrl_c()
    # What is started in the background of a script inherits that SIGINT is ignored; the parent's end is told by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        task = json.loads(sys.stdin.buffer.readline())
        threading.Thread(target=_interrupt_at_the_end_of_stdin, daemon=True).start()
        step = Step(**{**task["step"], **{name: Path(task["step"][name]) for name in ("data", "directory")}})
        answer: dict[str, Any] = {"result": _STEPS[task["name"]](step)}
    except KeyboardInterrupt:
        os._exit(signals.exit_status())
    except Exception as error:
        message = mistake(error)
        if message is None:
            raise
        answer = {"error": message}
    print(json.dumps(answer), flush=True)


def _interrupt_at_the_end_of_stdin() -> None:
    os.read(0, 1)  # not sys.stdin, whose lock nothing may hold when the interpreter ends
    os.kill(os.getpid(), signal.SIGINT)
