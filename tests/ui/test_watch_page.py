"""The page of `minitrain watch` in a real browser: a run that goes on, stalls and ends, both themes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from minitrain.commands.serve import listen
from minitrain.monitoring.dashboard.app import make_app
from minitrain.monitoring.sinks.json_lines import JsonLines, metrics_file

from ..minitrain.monitoring.runs import sample
from .test_jupyterlab import CONTRAST, MIDDLE, brightness


class Going:
    """A run that goes on as it is told to, and its page."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.logs = [JsonLines(metrics_file(folder, rank)) for rank in (0, 1)]

    def step(self, number: int, ago: float = 0.0, **more) -> None:
        for rank, log in enumerate(self.logs):
            own = {"compute_seconds": 0.9 + rank, "time": time.time() - ago}
            log(sample(number) | own | more)

    def end(self) -> None:
        for log in self.logs:
            log({"time": time.time(), "ended": "finished"})


@pytest.fixture
def going(tmp_path) -> Iterator[Going]:
    folder = tmp_path / "1M-corpus"
    folder.mkdir()
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(folder), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield Going(folder, f"http://127.0.0.1:{listening.getsockname()[1]}")
    server.should_exit = True
    thread.join()


@pytest.fixture
def show(browser, going) -> Iterator:
    contexts = []

    def shown(theme: str = "light", width: int = 1280):
        viewport = {"width": width, "height": 900}
        contexts.append(browser.new_context(color_scheme=theme, viewport=viewport))
        page = contexts[-1].new_page()
        page.wrong = []
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("console", lambda line: line.type == "error" and page.wrong.append(line.text))
        page.goto(going.url)
        return page

    yield shown
    for context in contexts:
        context.close()


def state(page, text: str) -> None:
    page.get_by_role("status").get_by_text(text, exact=True).wait_for()


def test_a_run_that_begins_goes_on_stalls_and_ends(show, going):
    page = show()
    state(page, "not begun")
    for number in range(1, 4):
        going.step(number, ago=200.0)
    page.get_by_role("heading", name="1M-corpus").wait_for()
    state(page, "stalled")
    alert = page.get_by_role("list", name="Alerts").get_by_role("listitem").first
    assert "RunStalled on ranks 0, 1" in alert.inner_text()
    assert "Mycroft" in alert.inner_text(), "with the source of its number"
    going.step(4, held_out=1.5)
    state(page, "running")
    page.get_by_text("4 of 100").wait_for()
    loss = page.get_by_role("img", name="loss, 4 at first")
    assert loss.is_visible() and page.get_by_text("floor 0.900").is_visible()
    assert page.get_by_role("img", name="over 1.1 times the median: rank 1").is_visible()
    assert page.get_by_text("emulated H100").count() == 2
    going.end()
    state(page, "finished")
    assert page.wrong == []


def test_it_asks_once_a_second_and_paints_only_what_is_new(show, going):
    going.step(1)
    page = show()
    page.get_by_text("1 of 100").wait_for()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("() => { window.first = document.querySelector('figure'); }")
    page.wait_for_timeout(3500)
    assert 2 <= len(asked) <= 4 and all("state?seen=" in url for url in asked)
    assert page.evaluate("() => window.first.isConnected"), "nothing was new: it stays"
    going.step(2)
    page.get_by_text("2 of 100").wait_for()
    assert not page.evaluate("() => window.first.isConnected")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_reads_well_in_both_themes_and_on_a_narrow_screen(show, going, theme):
    going.step(1, ago=100.0), going.step(2, ago=90.0, held_out=1.5)
    page = show(theme, width=420)
    state(page, "stalled")
    assert (brightness(page) > MIDDLE) == (theme == "light")
    worst = page.locator("main").evaluate(CONTRAST)
    assert worst >= 4.5, f"contrast {worst:.2f} in the {theme} theme"
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    assert wide <= 420, f"{wide} px need a sideways scroll"
    assert page.wrong == []
