"""Chromium without a window, driven over its DevTools pipe."""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

_FLAGS = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
_QUIET = "--disable-background-networking --disable-component-update --disable-extensions --disable-sync --mute-audio"
_SECONDS = 60


def find_chromium() -> str | None:
    """Where one is that runs: some systems have a program of this name that only says how to install it."""
    programs = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    return next((program for program in programs if _runs(program)), None)


def _runs(program: str) -> bool:
    return subprocess.run([program, "--version"], capture_output=True, check=False, timeout=_SECONDS).returncode == 0


class Chromium:
    """One page. `events` holds what it has told since `open`."""

    def __init__(self, program: str, profile: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs_in, theirs_out)]
        ends = [(os.POSIX_SPAWN_DUP2, end, 3 + number) for number, end in enumerate(high)]
        silent = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        arguments = [program, *_FLAGS.split(), *_QUIET.split(), f"--user-data-dir={profile}", "about:blank"]
        self._process = os.posix_spawn(program, arguments, os.environ, file_actions=[*ends, silent], setpgroup=0)
        for end in (theirs_in, theirs_out, *high):
            os.close(end)
        self._in, self._out, self._buffer, self._number = ours_in, ours_out, b"", 0
        self.events: list[dict[str, Any]] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, url: str, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a page as a screen of that width shows it."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def photograph(self, path: Path) -> None:
        """The whole page as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(b64decode(answer["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What it answers; events that come meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def close(self) -> None:
        """End it and all of its processes."""
        os.close(self._out)
        os.close(self._in)
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "chromium does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "chromium ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer
