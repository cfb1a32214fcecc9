"""The page of `minitrain watch` in a real browser: a run that goes on, stalls and ends, both themes."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from minitrain.apps.listening import listen
from minitrain.apps.watch.app import page_server
from minitrain.lab.notebook.health import find_chromium
from minitrain.monitoring.json_lines import JsonLines, metrics_file

from ..minitrain.monitoring.runs import sample
from .conftest import FLAGS
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
    server = page_server(folder)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield Going(folder, f"http://127.0.0.1:{listening.getsockname()[1]}")
    server.should_exit = True
    thread.join()


def state(page, text: str) -> None:
    page.get_by_role("status").get_by_text(text, exact=True).wait_for()


def test_a_run_that_begins_goes_on_stalls_and_ends(view, going):
    page = view(going.url)
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


WATCHED = """() => {
    window.touched = [];
    const seen = found => found.forEach(each => window.touched.push(each.target));
    window.watching = new MutationObserver(seen);
    const all = {subtree: true, childList: true, attributes: true, characterData: true};
    window.watching.observe(document.querySelector(".minitrain-run"), all);
}"""


def test_one_request_tells_it_all_and_only_what_is_new_is_touched(view, going):
    going.step(1)
    page = view(going.url)
    page.get_by_text("1 of 100").wait_for()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(WATCHED)
    page.wait_for_timeout(1500)
    assert page.evaluate("() => window.touched.length") == 0, "nothing was new"
    going.step(2)
    page.get_by_text("2 of 100").wait_for()
    assert page.evaluate("() => window.touched.length") > 0
    untouched = """() => window.touched.every(
        node => (node.parentElement ?? node).closest("#head, #panel-loss"))"""
    assert page.evaluate(untouched), "the other pictures are as they were"
    assert asked == []


def test_a_page_that_is_not_seen_is_told_nothing(view, going):
    going.step(1)
    page = view(going.url)
    page.get_by_text("1 of 100").wait_for()
    hide = """hidden => {
        Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    going.step(2)
    page.wait_for_timeout(1200)
    assert page.get_by_text("1 of 100").is_visible()
    page.evaluate(hide, False)
    page.get_by_text("2 of 100").wait_for()
    assert page.wrong == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_reads_well_in_both_themes_and_on_a_narrow_screen(view, going, theme):
    going.step(1, ago=100.0), going.step(2, ago=90.0, held_out=1.5)
    page = view(going.url, theme, width=420)
    state(page, "stalled")
    assert (brightness(page) > MIDDLE) == (theme == "light")
    worst = page.locator("main").evaluate(CONTRAST)
    assert worst >= 4.5, f"contrast {worst:.2f} in the {theme} theme"
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    assert wide <= 420, f"{wide} px need a sideways scroll"
    assert page.wrong == []


# --- what it costs ---

CORES, MOST_SHARE = 2, 0.01  # of the machine that trains
STEPS_A_SECOND, LOOKED_SECONDS, TRIES = 3, 8, 3


def cpu_seconds(processes: list[psutil.Process]) -> dict[psutil.Process, float]:
    return {each: sum(each.cpu_times()[:2]) for each in processes if each.is_running()}


def noisy(number: int) -> dict:
    """Every curve moves, as a real run's do; so every picture has something to paint."""
    up = 1 + 0.1 * ((number * 7919) % 101 / 101 - 0.5)
    names = ("loss", "grad_norm", "tokens_per_second", "memory_bytes", "gpu_power_watts")
    return {name: sample(number)[name] * up for name in names} | {"total_steps": 5000}


@pytest.fixture
def watched(browser, going, tmp_path) -> Iterator[list[psutil.Process]]:
    """The command's server and a browser of its own, on a run of 1,000 steps that goes on."""
    for number in range(1, 1000):
        going.step(number, ago=(1000 - number) / STEPS_A_SECOND, **noisy(number))
    command = [sys.executable, "-m", "minitrain", "watch", str(tmp_path / "1M-corpus"), "--port=0"]
    with ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(server.terminate)
        address = re.search(r"http://[^;]*", server.stdout.readline())[0]
        before = psutil.Process().children(recursive=True)
        own = browser.browser_type.launch(executable_path=find_chromium(), args=FLAGS)
        stack.callback(own.close)
        page = own.new_page()
        page.goto(address)
        page.get_by_text("999 of 5,000").wait_for()
        now = psutil.Process().children(recursive=True)
        yield [each for each in now if each not in before] + [psutil.Process(server.pid)]


def share_of_cores(processes: list[psutil.Process], going: Going, number: int) -> float:
    before, began = cpu_seconds(processes), time.monotonic()
    while time.monotonic() < began + LOOKED_SECONDS:
        going.step(number, **noisy(number))
        number += 1
        time.sleep(1 / STEPS_A_SECOND)
    used = sum(now - before[each] for each, now in cpu_seconds(processes).items())
    return used / (time.monotonic() - began) / CORES


@pytest.mark.alone
@pytest.mark.full
def test_server_and_browser_take_under_one_percent_of_two_cores(watched, going):
    """By CPU time, painting in software; the least of some looks, as a busy machine only adds."""
    shares = []
    for number in range(TRIES):
        shares.append(share_of_cores(watched, going, 1000 * (number + 1)))
        if min(shares) < MOST_SHARE:
            return
    raise AssertionError(f"{min(shares):.2%} of {CORES} cores, {MOST_SHARE:.0%} at most")
