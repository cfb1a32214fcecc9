"""Every rule fires on what is planted and is silent on ten healthy hours; promtool says the same."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from functools import lru_cache

import pytest

from minitrain.errors import InputError
from minitrain.monitoring.alerts.evaluate import Alerts
from minitrain.monitoring.alerts.rules import RULES, Rule
from minitrain.monitoring.alerts.rules_file import rules_file
from minitrain.monitoring.incidents.score import Found, detect_by, score
from minitrain.monitoring.incidents.traces import INTERVAL, KINDS, Label, Trace, label, trace
from minitrain.monitoring.metrics import METRICS, exposed_name

PLANTED = {
    "RunStalled": "hang",
    "LossNotFinite": "not finite",
    "LossSpike": "loss spike",
    "GradientSpike": "gradient spike",
    "StepsSkipped": "overflow",
    "Straggler": "straggler",
    "MfuDropped": "network",
    "GpuHot": "fan",
    "GpuXid": "xid",
    "LoaderWait": "loader",
    "CheckpointOld": "no saves",
}


@lru_cache
def alarms(seed: int, kind: str) -> tuple:
    return tuple(detect_by()(traced(seed, kind)))


@lru_cache
def traced(seed: int, kind: str) -> Trace:
    return trace(seed, kind)


def seed_of(kind: str) -> int:
    """The first seed that plants it strongly."""
    return next(seed for seed in range(100) if label(seed, kind).strength > 0.6)


def test_every_rule_has_its_incident_and_its_source():
    assert PLANTED.keys() == {rule.name for rule in RULES}
    assert set(PLANTED.values()) == set(KINDS) - {"healthy"}
    assert all(rule.source and rule.says for rule in RULES)


@pytest.mark.parametrize("name, kind", PLANTED.items())
def test_a_rule_fires_on_its_incident_on_the_right_rank_and_not_before(name, kind):
    seed = seed_of(kind)
    planted = label(seed, kind)
    found = Found(planted, alarms(seed, kind))
    assert found.false == () and name in found.names
    if name in ("Straggler", "GpuHot", "GpuXid"):
        assert {rank for _, fired, rank in found.alarms if fired == name} == {planted.rank}


@pytest.mark.parametrize("seed", range(100, 110))
def test_all_are_silent_on_healthy_hours(seed):
    assert alarms(seed, "healthy") == ()


def test_an_alert_is_pending_until_its_time_is_over_and_begins_again():
    (rule,) = (rule for rule in RULES if rule.name == "GpuHot")
    alerts = Alerts([rule])
    firing = []
    for minute in range(30):
        hot = minute in range(3, 7) or minute >= 12  # 4 minutes are too few
        celsius = 90.0 if hot else 60.0
        firing.append(bool(alerts.scrape(60.0 * minute, {1: {"gpu_temperature_celsius": celsius}})))
    assert [minute for minute, is_firing in enumerate(firing) if is_firing] == list(range(17, 30))
    assert [(alert.name, alert.rank, alert.since) for alert in alerts.fired] == [
        ("GpuHot", 1, 1020)
    ]


# --- promtool ---


@pytest.fixture(scope="module")
def promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: sudo apt install prometheus")
    return program


def run(promtool: str, *arguments: object) -> subprocess.CompletedProcess:
    command = [promtool, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_promtool_reads_the_rules_file(promtool, tmp_path):
    path = tmp_path / "alerts.yaml"
    path.write_text(rules_file())
    checked = run(promtool, "check", "rules", path)
    assert checked.returncode == 0 and f"{len(RULES)} rules found" in checked.stdout, checked.stderr


def series_of(seen, run: str = "r") -> list[dict]:
    """A trace as promtool wants it: a text of values at 0, 15, 30 … s for each series."""
    found: dict[tuple[str, int], list[str]] = {}
    asked = {name for name in METRICS if exposed_name(name) in rules_file()}
    for number, (_, newest) in enumerate(seen.scrapes, start=1):
        for rank, sample in newest.items():
            for name, value in sample.items():
                if name in asked:
                    values = found.setdefault((name, rank), ["_"] * number)
                    values.append(number_text(float(value)))
    return [
        {"series": f'{exposed_name(n)}{{run="{run}",rank="{r}"}}', "values": " ".join(values)}
        for (n, r), values in found.items()
    ]


def number_text(value: float) -> str:
    return "NaN" if math.isnan(value) else repr(value)


def expected_at(seen, times: list[float]) -> dict[float, set[tuple[str, int]]]:
    """What our evaluation says at these times."""
    alerts, found = Alerts(), {}
    for now, newest in seen.scrapes:
        firing = alerts.scrape(now, newest)
        if now in times:
            found[now] = {(alert.name, alert.rank) for alert in firing}
    return found


SOME = ("healthy", "straggler", "fan", "not finite")  # every form of expression; others take long
CASES = [kind if kind in SOME else pytest.param(kind, marks=pytest.mark.full) for kind in KINDS]


@pytest.mark.parametrize("kind", CASES)
def test_promtool_finds_the_same_alerts_at_the_same_times(promtool, tmp_path, kind):
    seen = traced(seed_of(kind) if kind != "healthy" else 100, kind)
    begins = label(seen.seed, kind).begins or 1800.0
    near = (begins + 15 * n for n in (-1, 1, 2, 5, 9, 12, 21, 24, 31, 45, 60, 80))
    times = sorted({INTERVAL * round(time / INTERVAL) for time in near} | {900.0})
    times = [time for time in times if time <= 3600]
    expected = expected_at(seen, times)
    tests = [
        {
            "eval_time": f"{int(time)}s",
            "alertname": rule.name,
            "exp_alerts": [
                {
                    "exp_labels": {"run": "r", "rank": str(rank), "severity": rule.severity},
                    "exp_annotations": {"summary": rule.says, "source": rule.source},
                }
                for name, rank in sorted(expected[time])
                if name == rule.name
            ],
        }
        for time in times
        for rule in RULES
    ]
    assert (kind == "healthy") != any(expected.values())
    group = {"interval": "15s", "input_series": series_of(seen), "alert_rule_test": tests}
    test = {"rule_files": ["alerts.yaml"], "evaluation_interval": "15s", "tests": [group]}
    (tmp_path / "alerts.yaml").write_text(rules_file())
    (tmp_path / "test.yaml").write_text(json.dumps(test))
    tested = run(promtool, "test", "rules", tmp_path / "test.yaml")
    assert tested.returncode == 0, (tested.stdout + tested.stderr)[-3000:]
    if kind == "straggler":  # a rules file with another threshold is found out
        wrong = rules_file().replace("1.1)", "1.9)")
        (tmp_path / "alerts.yaml").write_text(wrong)
        assert run(promtool, "test", "rules", tmp_path / "test.yaml").returncode != 0


# --- the score ---


def test_labels_are_drawn_from_the_seed_and_traces_do_not_show_them():
    drawn = [label(seed) for seed in range(300)]
    kinds = {one.kind for one in drawn}
    assert kinds == set(KINDS) and drawn == [label(seed) for seed in range(300)]
    assert 0.4 < sum(one.kind == "healthy" for one in drawn) / 300 < 0.6
    seen = trace(3)
    assert vars(seen).keys() == {"seed", "scrapes"}
    assert trace(3).scrapes == seen.scrapes and trace(4).scrapes != seen.scrapes
    with pytest.raises(InputError, match="no incident is called 'fire'"):
        label(0, "fire")


def test_the_score_counts_delays_and_false_alarms():
    found = Found(Label("fan", 1, 100.0), ((90.0, "early", 0), (160.0, "late", 1), (130.0, "b", 1)))
    assert found.delay == 30.0 and found.false == ((90.0, "early", 0),)
    assert found.names == {"late", "b"}
    assert Found(Label("healthy"), ((5.0, "a", 0),)).delay is None

    def nervous(seen) -> list:
        return [(now, "always", 0) for now, _ in seen.scrapes[:10]]

    seeds = [seed for seed in range(40) if label(seed).kind in ("healthy", "xid")][:3]
    mine, theirs = score(detect_by(), seeds), score(nervous, seeds)
    assert mine.false_alarms == 0 and theirs.false_alarms == 10 * len(seeds)
    assert theirs.detected < mine.detected or not mine.planted
    assert "false alarms in" in str(mine)


def test_a_rule_of_ones_own_is_scored_like_ours():
    from minitrain.monitoring.alerts.expressions import latest

    rule = Rule("Hot", latest("gpu_temperature_celsius") > 10.0, "0s", "page", "always", "none")
    assert score(detect_by([rule]), [0], "healthy").false_alarms == 8
