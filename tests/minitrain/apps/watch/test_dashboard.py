from __future__ import annotations

import asyncio
import json
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import numpy as np
import pytest
from starlette.testclient import TestClient

from minitrain.apps.watch import app, svg
from minitrain.apps.watch.app import Looker, make_app
from minitrain.apps.watch.history import MOST, Curve, History, Point, Tail, open_run
from minitrain.apps.watch.page import body, state_of
from minitrain.errors import InputError
from minitrain.lab import live
from minitrain.monitoring.json_lines import JsonLines, metrics_file

from ...monitoring.runs import BEGAN, sample, write


def seen(folder, at: float = BEGAN) -> History:
    history = History(folder, clock=lambda: at)
    history.look()
    return history


# --- curves ---


@pytest.mark.parametrize("count", [1, 7, MOST - 1, MOST, 5 * MOST + 3])
def test_a_curve_of_any_length_keeps_its_mean_and_its_extremes(count):
    values = np.random.default_rng(count).normal(size=count)
    values[count // 3] = 99.0  # one step of a million
    curve = Curve()
    for x, value in enumerate(values):
        curve.add(x, float(value))
    points = curve.seen()
    assert len(points) <= MOST + 1 and max(p.high for p in points) == 99.0
    assert min(p.low for p in points) == values.min() or count == 1
    assert points[-1].x == count - 1 and [p.x for p in points] == sorted({p.x for p in points})
    whole = len(curve.points) * curve.stride
    means = [p.mean for p in curve.points]
    if whole:
        assert np.mean(means) == pytest.approx(values[:whole].mean())


def test_what_is_not_finite_is_counted_and_what_begins_late_is_zero_before():
    curve = Curve()
    for x, value in enumerate([1.0, math.nan, math.inf, 2.0]):
        curve.add(x, value)
    assert curve.not_finite == 2 and [p.mean for p in curve.seen()] == [1.0, 2.0]
    late = curve.zeros()
    late.add(4, 5.0), curve.add(4, 3.0)
    assert [p.x for p in late.seen()] == [p.x for p in curve.seen()]
    assert [p.mean for p in late.seen()] == [0.0, 0.0, 5.0]


# --- files ---


def test_the_tail_reads_what_is_new_whole_lines_only_and_a_cut_file_anew(tmp_path):
    path = write(tmp_path, [sample(1), sample(2)])
    tail = Tail(tmp_path)
    assert [each["step"] for _, each in tail.look()] == [1, 2] and tail.look() == []
    with path.open("a") as file:
        file.write('{"time": 1000003.0, "step": 3, "lo')
    assert tail.look() == []
    with path.open("a") as file:
        file.write('ss": 2.0}\nno json\n')
    write(tmp_path, [sample(3)], rank=2)
    assert [(rank, each["step"]) for rank, each in tail.look()] == [(0, 3), (2, 3)]
    path.unlink()
    write(tmp_path, [sample(1, loss=7.0)])
    assert [(rank, each["loss"]) for rank, each in tail.look()] == [(0, 7.0), (2, 2.0)]
    assert tail.began_anew == 1


def test_a_resumed_run_is_read_anew_rank_by_rank_and_nothing_is_lost(tmp_path):
    for rank in (0, 1):
        write(tmp_path, [sample(step) for step in range(1, 6)], rank)
    history = seen(tmp_path)
    for rank in (0, 1):  # each rank cuts its file when it comes to its first step
        log = JsonLines(metrics_file(tmp_path, rank), done_steps=3)
        log(sample(4, loss=7.0, time=BEGAN + 50))
        log.close()
        history.look()
    assert [point.x for point in history.curves["loss"].seen()] == [1, 2, 3, 4]
    assert history.newest[0]["loss"] == history.newest[1]["loss"] == 7.0


def test_a_folder_that_holds_no_run_is_a_sentence(tmp_path):
    with pytest.raises(InputError, match="is not there: give the folder of a run"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"holds no metrics.jsonl"):
        open_run(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    assert open_run(tmp_path) == tmp_path, "of one that has not made a step yet"
    assert state_of(seen(tmp_path))["state"] == "not begun"
    assert "<dl>" in body(state_of(seen(tmp_path)))


# --- the state ---


def test_a_run_is_running_then_stalled_then_over(tmp_path):
    write(tmp_path, [sample(step) for step in range(1, 11)])
    now = [BEGAN + 12]
    history = History(tmp_path, clock=lambda: now[0])
    history.look()
    assert history.state == "running" and history.alerts.firing == []
    now[0] += 70
    history.look()
    assert history.state == "stalled"
    (alert,) = state_of(history)["alerts"]
    assert alert["name"] == "RunStalled" and alert["fires"] and alert["on"] == "rank 0"
    write(tmp_path, [{**sample(11), "time": now[0] + 1}], ended="finished")
    history.look()
    assert history.state == "finished"
    (alert,) = state_of(history)["alerts"]
    assert not alert["fires"], "it did, and is over"
    now[0] += 10_000
    history.look()
    assert history.state == "finished", "and no longer stalls"


def test_a_finished_run_is_opened_with_the_alerts_of_its_time(tmp_path):
    steps = [sample(step, seconds=5.0) for step in range(1, 300)]
    for each in steps[100:220]:
        each["gpu_temperature_celsius"] = 91.0
    write(tmp_path, steps)
    write(tmp_path, [{**each, "compute_seconds": 4.5} for each in steps], rank=1)
    write(tmp_path, [{**steps[-1], "step": 300, "loss": math.nan}], ended="diverged")
    state = state_of(seen(tmp_path, BEGAN + 10**7))
    not_finite, hot = state["alerts"]
    assert state["state"] == "diverged"
    assert not_finite["name"] == "LossNotFinite" and not_finite["fires"]
    assert hot["name"] == "GpuHot" and hot["on"] == "ranks 0, 1" and not hot["fires"]


def test_a_session_that_was_stopped_is_no_stall(tmp_path):
    write(tmp_path, [sample(1), sample(2)], ended="stopped")
    later = [{**sample(step), "time": BEGAN + 9000 + step} for step in (3, 4)]
    write(tmp_path, later, ended="finished")
    assert seen(tmp_path, BEGAN + 10**6).alerts.fired == []
    write(tmp_path / "killed", [sample(1), sample(2)])
    write(tmp_path / "killed", later, ended="finished")
    fired = seen(tmp_path / "killed", BEGAN + 10**6).alerts.fired
    assert [alert.name for alert in fired] == ["RunStalled"], "but one that was killed is"


def test_the_panels_are_those_that_the_run_has_anything_for(tmp_path):
    write(tmp_path, [sample(1), sample(2, held_out=2.0)])
    panels = {panel["id"]: panel for panel in state_of(seen(tmp_path))["panels"]}
    assert "ranks" not in panels and "emulated H100" in panels["gpu_power_watts"]["title"]
    write(tmp_path, [sample(2, compute_seconds=2.0)], rank=3)
    write(tmp_path, [sample(3, gpu_is_emulated=0)])
    panels = {panel["id"]: panel for panel in state_of(seen(tmp_path))["panels"]}
    assert "over 1.1 times the median: rank 3" in panels["ranks"]["picture"]
    assert panels["gpu_power_watts"]["title"] == "Power"
    write(tmp_path / "own", [{"time": BEGAN, "step": 1, "loss": 2.0}])
    assert [p["id"] for p in state_of(seen(tmp_path / "own"))["panels"]] == ["loss"]


# --- drawing ---


def test_every_picture_is_whole_has_words_and_stays_inside():
    random = np.random.default_rng(0)
    for count in (1, 2, 50):
        for scale in (1e-9, 1.0, 1e12):
            xs = np.cumsum(random.integers(1, 9, count))
            points = [Point(float(x), *[float(scale * random.random())] * 3) for x in xs]
            series = [("a", svg.BLUE, points), ("b", svg.ORANGE, [])]
            for text in (
                svg.lines(series, "a < b", level=scale / 2),
                svg.lines(series, "a < b", log=True),
                svg.stack(series, "a < b"),
                svg.bars({rank: p.mean for rank, p in enumerate(points)}, "a < b", scale / 2),
            ):
                root = ElementTree.fromstring(text)
                assert root.attrib["aria-label"].startswith("a < b")
                for path in root.iter("path"):
                    numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", path.attrib["d"])]
                    assert all(-0.1 <= n <= svg.WIDTH + 0.1 for n in numbers)


def test_what_a_run_is_called_cannot_write_the_page(tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    evil = sample(1, parts={"<script>": 1.0}, step_seconds=1.0)
    write(folder, [evil])
    history = seen(folder)
    drawn = body(state_of(history)) + live.drawn(history).html
    assert "<script>" not in drawn and "<img" not in drawn


# --- the page ---


def ran(work):
    """In a thread of its own: beside a browser's tests a loop runs already in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def test_the_page_and_the_traces_beside_it_and_nothing_else(tmp_path):
    write(tmp_path, [sample(1)])
    (tmp_path / "trace-step-5.json").write_text('{"traceEvents": []}')
    (tmp_path / "secret.json").write_text("{}")
    with TestClient(make_app(tmp_path)) as client:
        page = client.get("/")
        assert page.status_code == 200 and ".minitrain-run .charts" in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert client.get("/trace/trace-step-5.json").json() == {"traceEvents": []}
        for name in ("secret.json", "..%2Fsecret.json", "trace-step-6.json"):
            assert client.get(f"/trace/{name}").status_code == 404


def test_a_page_is_told_what_is_new_and_pictures_now_and_then(tmp_path):
    write(tmp_path, [sample(1)])
    (tmp_path / "trace-step-5.json").write_text("{}")
    looker = Looker(tmp_path)
    seen, first = ran(looker.changes())
    assert 'href="trace/trace-step-5.json"' in first["traces"] and first["state"] == "stalled"
    assert "Gradient norm" in dict(first["charts"])["grad_norm"]
    assert ran(looker.changes(seen)) == (seen, None), "nothing where nothing is new"
    write(tmp_path, [sample(2)])
    newer, second = ran(looker.changes(seen))
    assert newer > seen and "2 of 100" in second["head"]
    charts = dict(second["charts"])
    assert "step 2" in charts["loss"] and charts["memory_bytes"] is None, "it changes slowly"
    whole = dict(ran(looker.changes())[1]["charts"])
    assert whole["loss"] == charts["loss"] and whole["memory_bytes"], "to a browser that is new"
    write(tmp_path, [sample(3)], ended="finished")
    shown = ran(looker.changes(newer))[1]["charts"]
    assert all(html for _, html in shown), "the end shows all of it"


def test_a_stream_tells_at_once_and_ends_with_its_server(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "EVERY", 0.01)
    write(tmp_path, [sample(1)])
    over = threading.Event()

    async def told() -> list[dict]:
        found = []
        async for event in Looker(tmp_path).events(over.is_set):
            assert event.startswith("data: ") and event.endswith("\n\n")
            found.append(json.loads(event.removeprefix("data: ")))
            write(tmp_path, [sample(len(found) + 1)])
            if len(found) == 3:
                over.set()
        return found

    heads = [state["head"] for state in ran(asyncio.wait_for(told(), 10))]
    assert [f"{step} of 100" in head for step, head in enumerate(heads, 1)] == [True] * 3


# --- in a notebook ---


def test_outside_a_notebook_the_end_of_the_run_is_told_in_words(tmp_path, capsys):
    with live.watching(tmp_path, every=0.01) as history:
        write(tmp_path, [sample(1), sample(2)], ended="finished")
    said = capsys.readouterr().out
    assert f"{tmp_path.name}: finished" in said and "step: 2 of 100" in said
    assert history.state == "finished"
    with pytest.raises(InputError, match="over 0"), live.watching(tmp_path, every=0):
        pass


def test_in_a_notebook_the_picture_is_replaced_while_the_block_runs(tmp_path, monkeypatch):
    shown = []

    class Handle:
        def update(self, rich):
            shown.append(rich)

    monkeypatch.setattr(live, "in_kernel", lambda: True)
    monkeypatch.setattr(live, "_first", lambda history: Handle())
    with live.watching(tmp_path, every=0.01):
        for step in range(1, 4):
            write(tmp_path, [sample(step)])
            for _ in range(1000):
                if shown and f"{step} of 100" in shown[-1].html:
                    break
                live.threading.Event().wait(0.01)
            assert f"{step} of 100" in shown[-1].html
    assert "panel-loss" in shown[-1]._repr_html_() and "step: 3 of 100" in repr(shown[-1])
