"""A headless browser for tests of pages, controlled through its debugging protocol."""

import base64
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page of a headless browser."""

    def __init__(self, socket: Any) -> None:
        self.socket, self.number = socket, 0
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the debugging protocol."""
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=30))
            self._listen(message)
            if message.get("id") == self.number:
                assert "error" not in message, message
                return dict(message["result"])

    def _listen(self, message: dict[str, Any]) -> None:
        method, params = message.get("method", ""), message.get("params", {})
        if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(params))
        if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
            ("file:", "data:")
        ):
            self.complaints.append(f"asks for {params['request']['url']}")

    def js(self, expression: str) -> Any:
        """Return the value of an expression."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, path: Path, width: int = 1280, dark: bool = False) -> None:
        """Load a page at a width, light or dark."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self("Page.navigate", url=path.as_uri())
        loaded = "document.readyState === 'complete'"
        self.js(f"new Promise((done) => {{ if ({loaded}) done(); else onload = done; }})")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send a mouse event: moved, pressed, released or wheel."""
        name = "mouseWheel" if kind == "wheel" else f"mouse{kind.capitalize()}"
        self("Input.dispatchMouseEvent", type=name, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Click with the left button."""
        for kind in ("moved", "pressed", "released"):
            self.mouse(kind, x, y, button="none" if kind == "moved" else "left", clickCount=1)

    def press(self, *keys: str) -> None:
        """Press keys one after the other, given by their names or characters."""
        for key in keys:
            text = {"text": {"Enter": "\r"}.get(key, key)} if len(key) == 1 or key == "Enter" else {}
            self("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self("Input.dispatchKeyEvent", type="keyUp", key=key)

    def settle(self) -> None:
        """Wait until two frames have been drawn."""
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def shot(self, path: Path) -> None:
        """Save an image."""
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def headless(profile: Path) -> Iterator[Browser]:
    """Start a browser with its profile in a folder; skip the test if it or `websockets` is missing."""
    client = pytest.importorskip("websockets.sync.client")
    if CHROMIUM is None:
        pytest.skip("no chromium")
    flags = "--headless=new --no-sandbox --disable-gpu --remote-debugging-port=0 --hide-scrollbars"
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "DevTools listening on" in line)
        host = line.split("ws://")[1].split("/")[0]
        with urllib.request.urlopen(f"http://{host}/json/list") as answer:
            (target,) = (page for page in json.load(answer) if page["type"] == "page")
        with client.connect(target["webSocketDebuggerUrl"], max_size=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.communicate()
