"""Every rule fires on what is planted and is silent on ten healthy hours; promtool says the same."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from functools import lru_cache

import numpy as np
import pytest

from minitrain.errors import InputError
from minitrain.monitoring.alerts import HOUR, RULES, Alerts, Scrapes, rules_file
from minitrain.monitoring.metrics import METRICS, exposed_name

from .incidents import INTERVAL, KINDS, Trace, alarms_of, label, trace

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
    return tuple(alarms_of(traced(seed, kind)))


@lru_cache
def traced(seed: int, kind: str) -> Trace:
    return trace(seed, kind)


def seed_of(kind: str) -> int:
    """The first seed that plants it strongly."""
    return next(seed for seed in range(100) if label(seed, kind).strength > 0.6)


def holding(name: str, scrapes: Scrapes) -> list[int]:
    """The ranks on which that rule's condition is true."""
    (rule,) = (rule for rule in RULES if rule.name == name)
    return [rank for rank, holds in zip(scrapes.ranks, rule.holds(scrapes)) if holds]


def test_every_rule_has_its_incident_its_source_and_known_metrics():
    assert PLANTED.keys() == {rule.name for rule in RULES}
    assert set(PLANTED.values()) == set(KINDS) - {"healthy"}
    assert all(rule.source and rule.says for rule in RULES)
    asked = {name for rule in RULES for name in re.findall(r"minitrain_\w+", rule.promql)}
    assert asked <= {exposed_name(name) for name in METRICS}


def test_python_and_promql_take_their_numbers_from_the_rule():
    for rule in RULES:
        assert set(re.findall(r"[\d.]+", re.sub(r"{.*?}", "", rule.query))) <= {"0.5"}, rule.name
        written = {n for n in rule.condition.__code__.co_consts if isinstance(n, (int, float))}
        assert written <= {0.0} and not re.search("[{}]", rule.promql + rule.says), rule.name


@pytest.mark.parametrize("name, kind", PLANTED.items())
def test_a_rule_fires_on_its_incident_on_the_right_rank_and_not_before(name, kind):
    seed = seed_of(kind)
    planted, found = label(seed, kind), alarms(seed, kind)
    assert all(time >= planted.begins for time, _, _ in found)
    ranks = {rank for _, fired, rank in found if fired == name}
    on_one = name in ("Straggler", "GpuHot", "GpuXid")
    assert ranks == ({planted.rank} if on_one else set(range(8)))


@pytest.mark.parametrize("seed", range(100, 104))
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
    (alert,) = alerts.fired
    assert (alert.name, alert.rank, alert.since) == ("GpuHot", 1, 1020)


def test_windows_hold_the_scrapes_of_their_time_and_no_more_than_an_hour():
    scrapes, values = Scrapes(), np.random.default_rng(0).normal(size=500)
    for number, value in enumerate(values):
        scrapes.add(INTERVAL * number, {3: {"loss": float(value)}})
        for seconds in (1.0, 30.0, 60.0, HOUR):
            inside = values[max(0, number - int(seconds / INTERVAL)) : number + 1]
            for reduce in (np.median, np.mean, np.ptp):
                assert scrapes.over(seconds, "loss", reduce) == pytest.approx([reduce(inside)])
    assert len(scrapes.past["loss"][3]) == HOUR / INTERVAL + 1


def test_a_rank_without_a_value_and_nan_hold_no_condition():
    scrapes = Scrapes()
    assert not any(holding(rule.name, scrapes) for rule in RULES), "before the first sample"
    hot = {"gpu_temperature_celsius": 90.0}
    scrapes.add(1.0, {0: {"loss": 1.0}, 1: hot, 2: {"gpu_temperature_celsius": math.nan}})
    assert [rule.name for rule in RULES if holding(rule.name, scrapes)] == ["GpuHot"]
    assert holding("GpuHot", scrapes) == [1] and np.isnan(scrapes.latest("mfu")).all()
    scrapes.add(2.0, {0: {"loss": math.inf}, 1: {"loss": math.nan}, 2: {"loss": 1.0}})
    assert holding("LossNotFinite", scrapes) == [0, 1]
    with pytest.raises(InputError, match="no metric is called 'lost': known are"):
        scrapes.latest("lost")


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


def series_of(seen) -> list[dict]:
    """A trace as promtool reads it: the values at 0, 15, 30 … s of each series, as one string."""
    found: dict[tuple[str, int], list[str]] = {}
    asked = {name for name in METRICS if exposed_name(name) in rules_file()}
    for number, (_, newest) in enumerate(seen.scrapes, start=1):
        for rank, sample in newest.items():
            for name in asked & sample.keys():
                values = found.setdefault((name, rank), ["_"] * number)
                values.append(str(float(sample[name])).replace("nan", "NaN"))
    return [
        {"series": f'{exposed_name(n)}{{run="r",rank="{r}"}}', "values": " ".join(values)}
        for (n, r), values in found.items()
    ]


def expected_at(seen, times: list[float]) -> dict[float, set[tuple[str, int]]]:
    """The alerts that fire at these times by our own evaluation."""
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
    rules, tested = tmp_path / "alerts.yaml", tmp_path / "test.yaml"
    rules.write_text(rules_file())
    tested.write_text(json.dumps(test))
    checked = run(promtool, "check", "rules", rules)
    assert checked.returncode == 0 and f"{len(RULES)} rules found" in checked.stdout, checked.stderr
    same = run(promtool, "test", "rules", tested)
    assert same.returncode == 0, (same.stdout + same.stderr)[-3000:]
    if kind == "straggler":  # a rules file with another threshold is found out
        rules.write_text(rules_file().replace("1.1 *", "1.9 *"))
        assert run(promtool, "test", "rules", tested).returncode != 0
