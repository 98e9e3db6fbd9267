"""The explorer in JupyterLab and in Voila: opened, run, a slider moved, the figure follows."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from hetinfer.paths import root_dir

START_S = 60  # until the server answers; it takes a few seconds on a quiet machine
FIGURE = "Cost per million tokens"
FLEET = "Requests per second of each class"
CHANGED = """([alt, before]) => {
  const image = document.querySelector(`img[alt^="${alt}"]`);
  return image && image.src !== before;
}"""
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
    with serving(command, tmp_path, f"http://127.0.0.1:{port}/api"):
        yield f"http://127.0.0.1:{port}/lab/tree/explore.ipynb"


@pytest.fixture
def voila(tmp_path: Path) -> Iterator[str]:
    """The address of the explorer as Voila serves it, as `make explore` does."""
    port = free_port()
    command = [
        sys.executable, "-m", "voila", str(root_dir() / "notebooks" / "explore.ipynb"),
        "--no-browser", f"--port={port}",
    ]  # fmt: skip
    shutil.copy(root_dir() / "notebooks" / "voila.json", tmp_path)
    with serving(command, tmp_path, f"http://127.0.0.1:{port}/voila/static/index.html"):
        yield f"http://127.0.0.1:{port}/"


@contextmanager
def serving(command: list[str], folder: Path, address: str) -> Iterator[None]:
    """A server for as long as the block lasts; its output goes to a file of the folder."""
    environment = {**os.environ, "HETINFER_ROOT": str(root_dir())}
    environment.pop("MPLBACKEND", None)
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
        try:
            wait_for(address, server)
            yield
        finally:
            server.terminate()
            server.wait(30)


def wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it answers, if only that there is no such page
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.3)
    raise AssertionError(f"no server answered at {address}")


def move_price(page, outputs) -> None:
    """Raise the price of a 4090 by 40 steps, and wait for what follows from it."""
    figure = page.get_by_alt_text(FIGURE)
    figure.wait_for(timeout=RUN_MS)
    before = figure.get_attribute("src")
    outputs.get_by_text("2x 4090 is cheapest").first.wait_for(timeout=RUN_MS)
    handle = page.locator(".widget-hslider", has_text="4090, USD/h").locator(".noUi-handle")
    handle.focus()
    for _ in range(40):
        handle.press("ArrowUp")
    page.wait_for_function(CHANGED, arg=[FIGURE, before], timeout=RUN_MS)
    outputs.get_by_text("1x H100 is cheapest").first.wait_for(timeout=RUN_MS)


def move_mix(page, outputs) -> None:
    """Take all chat out of the mix, and wait for the fleet that follows."""
    fleet = page.get_by_alt_text(FLEET)
    fleet.wait_for(timeout=RUN_MS)
    before = fleet.get_attribute("src")
    outputs.get_by_text("50 % chat, 10 % development, 40 % batch").wait_for(timeout=RUN_MS)
    part(page, "chat").press("Home")
    page.wait_for_function(CHANGED, arg=[FLEET, before], timeout=RUN_MS)
    outputs.get_by_text("20 % development, 80 % batch").wait_for(timeout=RUN_MS)


def part(page, name: str):
    """The handle of a slider of the mix, which keys move: Home to none, End to most."""
    slider = page.locator(".widget-hslider").filter(has=page.get_by_text(name, exact=True))
    return slider.locator(".noUi-handle")


def keep_picture(page, name: str) -> None:
    if target := os.environ.get("HETINFER_SCREENSHOTS"):
        page.screenshot(path=Path(target) / name)


def test_a_slider_moves_the_figure_in_jupyterlab(open_page, lab):
    page = open_page(lab)
    page.get_by_text(re.compile(r"\| Idle")).wait_for(timeout=RUN_MS)  # the kernel has started
    page.get_by_role("menuitem", name="Run", exact=True).click(timeout=RUN_MS)
    page.get_by_text("Run All Cells", exact=True).click()
    outputs = page.locator(".jp-OutputArea .widget-html")
    move_mix(page, outputs)
    move_price(page, outputs)
    keep_picture(page, "explorer.png")


def test_a_slider_moves_the_figure_in_voila(open_page, voila):
    page = open_page(voila)
    outputs = page.locator(".widget-html")
    move_mix(page, outputs)
    move_price(page, outputs)
    keep_picture(page, "voila.png")
    assert page.get_by_text("import explorer").count() == 0  # a page for readers, without code


def test_the_page_fetches_nothing_from_outside(open_page, voila):
    with urllib.request.urlopen(voila, timeout=60) as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self'")
    page = open_page(voila)
    outside = []
    page.on("request", lambda request: outside.append(request))
    page.reload()
    page.get_by_alt_text(FIGURE).wait_for(timeout=RUN_MS)
    asked = [request for request in outside if request.url.startswith("http")]
    asked = [request for request in asked if "127.0.0.1" not in request.url]
    assert {request.failure for request in asked} <= {"csp"}  # stopped before it left the page


def test_a_change_is_answered(open_page, voila):
    page = open_page(voila)
    page.get_by_alt_text(FLEET).wait_for(timeout=RUN_MS)
    grid = page.locator(".widget-dropdown", has_text="grid").locator("select")
    regions = ("SE, 35 g/kWh", "PL, 589 g/kWh", "FR, 41 g/kWh")
    moves = [(FIGURE, partial(grid.select_option, label=region)) for region in regions]
    moves += [(FLEET, partial(part(page, "chat").press, key)) for key in ("Home", "End")]
    moves += [(FLEET, partial(part(page, "agents").press, "End"))]  # a class without curves so far
    times_ms = [answered_ms(page, alt, move) for alt, move in moves]
    # figures to read, not to fail by
    print(f"answered after {[round(ms) for ms in times_ms]} ms: grid thrice, mix thrice")
    assert len(times_ms) == len(moves)


def answered_ms(page, alt: str, move: Callable[[], object]) -> float:
    """From a move until the image of that name is another, as the page's own clock tells it."""
    before = page.get_by_alt_text(alt).get_attribute("src")
    started = page.evaluate("performance.now()")
    move()
    page.wait_for_function(CHANGED, arg=[alt, before], polling=20, timeout=RUN_MS)
    return page.evaluate("performance.now()") - started


def test_the_scenario_is_saved_as_a_file(open_page, voila, tmp_path):
    page = open_page(voila)
    link = page.get_by_text("Save this scenario as scenario.toml")
    link.wait_for(timeout=RUN_MS)
    with page.expect_download() as download:
        link.click()
    saved = tmp_path / "scenario.toml"
    download.value.save_as(saved)
    content = tomllib.loads(saved.read_text())
    assert content["usd_per_gpu_h"]["rtx-4090"] == 0.25
    assert ["chat", "development", "batch"] == [row["name"] for row in content["class"]]


def test_the_page_has_no_serious_finding(open_page, voila, axe_source):
    page = open_page(voila)
    page.get_by_alt_text(FIGURE).wait_for(timeout=RUN_MS)
    page.evaluate(axe_source)
    ours = "axe.run(document.querySelectorAll('.widget-html'))"  # the rest is Voila's own
    found = page.evaluate(ours)["violations"]
    assert [rule["id"] for rule in found if rule["impact"] in ("serious", "critical")] == []
