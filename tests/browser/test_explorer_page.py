"""The explorer in JupyterLab: opened, all cells run, a slider moved, the figure follows."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetinfer.paths import root_dir

START_S = 60  # until the server answers; it takes a few seconds on a quiet machine
RUN_MS = 90_000  # until the last cell has run


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLab over a copy of the explorer, so that none of it is saved."""
    shutil.copy(root_dir() / "notebooks" / "explore.ipynb", tmp_path)
    port = free_port()
    settings = tmp_path / "settings"
    notification = settings / "@jupyterlab" / "apputils-extension"
    notification.mkdir(parents=True)
    (notification / "notification.jupyterlab-settings").write_text(
        json.dumps({"fetchNews": "false", "checkForUpdates": False})
    )
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}",
        "--ip=127.0.0.1", "--IdentityProvider.token=", f"--ServerApp.root_dir={tmp_path}",
        f"--LabApp.user_settings_dir={settings}", f"--LabApp.workspaces_dir={tmp_path}/spaces",
    ]  # fmt: skip
    environment = {**os.environ, "HETINFER_ROOT": str(root_dir())}
    environment.pop("MPLBACKEND", None)
    with (tmp_path / "lab.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=tmp_path)
        try:
            wait_for(f"http://127.0.0.1:{port}/api", server)
            yield f"http://127.0.0.1:{port}/lab/tree/explore.ipynb"
        finally:
            server.terminate()
            server.wait(30)


def wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.3)
    raise AssertionError(f"JupyterLab did not answer at {address}")


def test_a_slider_moves_the_figure(open_page, lab):
    page = open_page(lab)
    page.get_by_text(re.compile(r"\| Idle")).wait_for(timeout=RUN_MS)  # the kernel has started
    page.get_by_role("menuitem", name="Run", exact=True).click(timeout=RUN_MS)
    page.get_by_text("Run All Cells", exact=True).click()
    figure = page.get_by_alt_text(re.compile("Cost per million tokens"))
    figure.wait_for(timeout=RUN_MS)
    before = figure.get_attribute("src")
    outputs = page.locator(".jp-OutputArea .widget-html")
    outputs.get_by_text("2x 4090 is cheapest").wait_for(timeout=RUN_MS)

    slider = page.locator(".widget-hslider", has_text="4090, USD/h")
    handle = slider.locator(".noUi-handle")
    handle.focus()
    for _ in range(40):
        handle.press("ArrowUp")
    page.wait_for_function(
        "before => document.querySelector('img[alt^=\"Cost per million\"]').src !== before",
        arg=before,
        timeout=RUN_MS,
    )
    outputs.get_by_text("1x H100 is cheapest").wait_for(timeout=RUN_MS)
    if target := os.environ.get("HETINFER_SCREENSHOTS"):
        page.screenshot(path=Path(target) / "explorer.png")
