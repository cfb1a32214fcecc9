"""A real JupyterLab with the course's settings, on copies of the notebooks, and a real browser.

Without Chromium, or without the ports that it needs, the tests skip and say why.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minitrain.lab.building.masters import for_learners, read_master, targets, write
from minitrain.lab.notebook.health import find_chromium
from minitrain.lab.notebook.server import server_command
from minitrain.paths import course_root

SMALL = Path(__file__).parent.parent / "minitrain" / "lab" / "course"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
]


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The course's notebooks and the small lab, copied: opening a notebook dirties it."""
    root = tmp_path_factory.mktemp("ui")
    shutil.copytree(SMALL, root / "small")
    shutil.copytree(course_root() / "labs", root / "labs")
    for name in ("solutions", "tests/labs"):
        shutil.copytree(course_root() / name, root / name)
    (target,) = targets(["e90_sums"], root / "small")
    write(for_learners(read_master(target)), target.lab)
    return root


@pytest.fixture(scope="session")
def server(workplace: Path) -> Iterator[str]:
    """The address of the server; the learner's own progress stays untouched."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    page = workplace / "labs" / "index.ipynb"
    open_to_tests = (
        "--IdentityProvider.token=",
        "--ServerApp.disable_check_xsrf=True",
        "--LabApp.expose_app_in_browser=True",
    )
    command = server_command(workplace, page, port, browser=False, options=open_to_tests)
    with (workplace / "server.log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "XDG_DATA_HOME": str(workplace / "data"), "HOME": str(workplace)},
        )
    try:
        yield _wait_for(f"http://localhost:{port}", process, workplace / "server.log")
    finally:
        process.terminate()
        process.wait(30)


def _wait_for(address: str, process: subprocess.Popen, log: Path) -> str:
    for _ in range(300):
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{address}/api", timeout=2).close()
            return address
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"no answer at {address}: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Chromium of the system's packages, driven by playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium is installed: sudo apt install chromium")
    with playwright.sync_playwright() as play:
        running = play.chromium.launch(executable_path=program, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def view(browser) -> Iterator[Callable]:
    """Opens an address by day or by night; `page.wrong` has what the page complains of."""
    contexts = []

    def viewed(url: str, theme: str = "light", width: int = 1280):
        viewport = {"width": width, "height": 900}
        contexts.append(browser.new_context(color_scheme=theme, viewport=viewport))
        page = contexts[-1].new_page()
        page.wrong = []
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("console", lambda line: line.type == "error" and page.wrong.append(line.text))
        page.goto(url)
        return page

    yield viewed
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def load(browser, server: str) -> Iterator[Callable]:
    """Loads JupyterLab with a notebook in the light or the dark theme; waits for an idle kernel.

    All pages are of one context, whose cache has JupyterLab's 20 MB of programs.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 1400})
    context.set_default_timeout(60_000)

    def loaded(path: str, theme: str = "light"):
        page = context.new_page()
        page.emulate_media(color_scheme=theme)
        name = f"{theme}-{Path(path).stem}"
        page.goto(f"{server}/lab/workspaces/{name}/tree/{path}")
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        wait_until_idle(page)
        return page

    yield loaded
    context.close()


@pytest.fixture(scope="session")
def page(load):
    """One JupyterLab for all that needs no fresh one: its loading costs seconds."""
    return load("labs/index.ipynb")


@pytest.fixture
def load_alone(load) -> Iterator[Callable]:
    """As `load`, closed after the test: what a hidden page paints holds up the one that is seen."""
    pages = []

    def loaded(path: str, theme: str = "light"):
        pages.append(load(path, theme))
        return pages[-1]

    yield loaded
    for page in pages:
        page.close()


@pytest.fixture
def open_tab(page) -> Iterator[Callable]:
    """Opens a notebook in a tab of its own, as a click in the list of files does -> its panel.

    It is closed after the test, since every open tab makes a change of theme slower; its kernel
    ends with the server.
    """
    numbers = []

    def opened(path: str):
        numbers.append(page.evaluate(OPEN, path))
        panel = page.locator(f"[id='{numbers[-1]}']")
        panel.locator(".jp-Cell").first.wait_for()
        return panel

    yield opened
    page.evaluate(CLOSE, numbers)


OPEN = """async path => {
    const panel = await window.jupyterapp.commands.execute("docmanager:open", { path });
    await panel.context.ready;
    await panel.sessionContext.ready;  // else a cell that is run now is passed over
    return panel.id;
}"""
CLOSE = """ids => {
    for (const panel of [...window.jupyterapp.shell.widgets("main")])
        if (ids.includes(panel.id)) panel.dispose();
}"""


def wait_until_idle(page) -> None:
    """The kernel is connected, and free."""
    page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for()
