"""A real browser for tests: Chromium without a window, driven through two pipes (DevTools protocol)."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe",
    "--hide-scrollbars", "--disable-extensions", "--force-color-profile=srgb",
)  # fmt: skip
ANSWER_S = 60.0


class Chromium:
    """One browser with one tab; use it in `with`. `events` has what the tab said since it was opened."""

    def __init__(self, profile: Path) -> None:
        found = next((path for name in _NAMES if (path := shutil.which(name))), None)
        if found is None:
            why = (
                f"These tests need a Chromium, and none of {', '.join(_NAMES)} is on the PATH: "
                "install Debian's with `apt-get install -y --no-install-recommends chromium`."
            )
            if os.environ.get("SAMESTEP_TEST_BROWSER") == "required":
                raise RuntimeError(why)
            pytest.skip(why)
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        # Chromium reads from 3 and writes to 4; the pipes must not have those numbers while they are moved
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
        null = os.open(os.devnull, os.O_RDWR)
        self._pid = os.posix_spawn(
            found,
            [found, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            os.environ | {"HOME": str(profile)},
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)),
                *((os.POSIX_SPAWN_DUP2, end, number) for end, number in zip(ends, (3, 4), strict=True)),
            ],
            setsid=True,
        )
        for end in (*ends, theirs_in, theirs_out, null):
            os.close(end)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> "Chromium":
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Do one thing, and return what came of it."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, path: Path, *, width: int = 1100, height: int = 900, scheme: str = "light") -> None:
        """Show a file from disk in a window of that size; a phone is one of 360."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        self.media(scheme=scheme)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._wait_for("Page.loadEventFired")

    def media(self, *, scheme: str = "light", media: str = "") -> None:
        """Prefer light or dark, and show as on a screen or as in print."""
        self.call(
            "Emulation.setEmulatedMedia",
            media=media,
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the tab."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key."""
        more = {"Enter": {"text": "\r", "windowsVirtualKeyCode": 13}, "Tab": {"windowsVirtualKeyCode": 9}}
        for kind in ("keyDown", "keyUp"):
            text = more.get(key, {}) if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **text)

    def screenshot(self, path: Path) -> None:
        """The whole page as a picture."""
        done = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(done["data"]))

    def pdf(self) -> bytes:
        """The page as it prints, on A4."""
        done = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)
        return base64.b64decode(done["data"])

    def requests(self) -> list[str]:
        """The addresses that the page asked for, itself included."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """What went to the console: errors of scripts, things that the page's policy forbids."""
        return [
            event["params"]["entry"]["text"]
            if event["method"] == "Log.entryAdded"
            else event["params"]["exceptionDetails"]["text"]
            for event in self.events
            if event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")
        ]

    def _wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self.events):
            self._next()

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + ANSWER_S
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium has not answered for {ANSWER_S:.0f} s")
            if not (part := os.read(self._from, 2**20)):
                raise RuntimeError("Chromium has ended")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message
