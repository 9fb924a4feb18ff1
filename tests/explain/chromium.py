"""A headless Chromium that a test drives by the DevTools protocol over a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_SWITCHES = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
]


class Tab:
    """A page that is open. Attributes: errors, what its script raised; requests, what it loaded besides itself."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.tabs[self._session] = self
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def open(self, path: Path) -> None:
        """Load a file and wait until its script has run."""
        self.call("Page.navigate", url=path.as_uri())
        ready = "new Promise((done) => document.readyState === 'complete' ? done() : addEventListener('load', done))"
        self.evaluate(ready)

    def evaluate(self, expression: str) -> Any:
        """What an expression, or a promise, has as JSON."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def hover(self, element: str) -> None:
        """Move the mouse to the middle of what an expression gives."""
        x, y = self.evaluate(
            f"(() => {{ const e = {element}; e.scrollIntoView({{block: 'center'}});"
            " const box = e.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def labels(self) -> list[tuple[str, str]]:
        """Role and name of everything that a screen reader is told."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node["name"]["value"]) for node in nodes if not node["ignored"] and "name" in node
        ]


class Browser:
    """The browser's end of the pipe."""

    def __init__(self, write: int, read: int) -> None:
        self.tabs: dict[str, Tab] = {}
        self._write, self._read, self._waiting, self._number = write, read, b"", 0

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._write, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                assert "error" not in told, told["error"]
                result: dict[str, Any] = told["result"]
                return result
            tab = self.tabs.get(told.get("sessionId", ""))
            if tab is not None and told.get("method") == "Runtime.exceptionThrown":
                tab.errors.append(str(told["params"]["exceptionDetails"]))
            if tab is not None and told.get("method") == "Network.requestWillBeSent":
                tab.requests.append(told["params"]["request"]["url"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            got = os.read(self._read, 2**16)
            assert got, "Chromium has gone"
            self._waiting += got
        one, _, self._waiting = self._waiting.partition(b"\0")
        message: dict[str, Any] = json.loads(one)
        return message


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own, gone after the block. It reads commands from file 3 and writes to file 4."""
    assert PROGRAM is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [PROGRAM, *_SWITCHES, f"--user-data-dir={profile}", "about:blank"]
        # A shell gives the pipes their numbers: what runs between fork and exec in Python may deadlock.
        script = f'exec "$@" 3<&{to_read} 4>&{from_write}'
        process = subprocess.Popen(
            ["/bin/bash", "-c", script, "bash", *command],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(to_write, from_read)
        finally:
            process.kill()
            process.wait()
            os.close(to_write)
            os.close(from_read)
