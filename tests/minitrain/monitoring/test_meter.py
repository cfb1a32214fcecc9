"""What a rank measures: parts that add up, waits that are not compute, on real ranks too."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
import torch

from minitrain.errors import InputError
from minitrain.measure.parts import Parts, Span
from minitrain.measure.traffic import Op, Trace, WallClock
from minitrain.monitoring.hardware import EmulatedSensor
from minitrain.monitoring.meter import Highest, Meter, split_by_part
from minitrain.parallel.ddp import DDP
from minitrain.ranks.launch import launch
from minitrain.reliability.spikes import Running
from minitrain.training.loop import Diverged, Peers, StepRecord, TrainConfig, train
from minitrain.training.report import Reporter

from ..training.toys import Toy, ToyLoader

MEASURED = ("data", "forward", "backward", "average", "optimizer", "between")


def record(step: int, loss: float = 1.0, norm: float = 1.0) -> StepRecord:
    return StepRecord(step, 10, 100 * step, 0.5 * step, loss, 0.01, norm, 5000.0)


def test_waits_are_taken_out_of_the_parts_and_nothing_is_lost():
    random = np.random.default_rng(0)
    for _ in range(50):
        cuts = np.sort(random.uniform(0, 10, 8))
        spans = [Span(f"part {i % 3}", a, b) for i, (a, b) in enumerate(itertools.pairwise(cuts))]
        edges = np.sort(random.uniform(-1, 11, 6))
        waits = [(edges[0], edges[1]), (edges[2], edges[3]), (edges[4], edges[5])]
        seconds = split_by_part(spans, waits)
        assert sum(seconds.values()) == pytest.approx(cuts[-1] - cuts[0])
        inside = sum(max(0, min(b, cuts[-1]) - max(a, cuts[0])) for a, b in waits)
        assert seconds.get("communication", 0.0) == pytest.approx(inside, abs=1e-12)
        assert all(value >= -1e-12 for value in seconds.values())


def test_the_samples_of_a_real_run_add_up_to_its_time():
    clock = time.thread_time  # what others do on the machine in between is no part of it
    parts, told = Parts(clock), []
    reporter = Reporter([told.append], lambda: 1.0, measure=Meter(parts), speaks=False)
    began = clock()
    train(Toy(), ToyLoader(), TrainConfig(steps=30), [reporter], begin=parts.begin)
    took = clock() - began
    samples = [sample for sample in told if "loss" in sample]
    assert len(samples) == 30
    for sample in samples:
        assert sum(sample["parts"].values()) == pytest.approx(sample["step_seconds"], abs=2e-6)
        assert set(MEASURED) <= sample["parts"].keys()
        assert sample["exposed_seconds"] == sample["sent_bytes"] == 0
    assert sum(s["step_seconds"] for s in samples) == pytest.approx(took, rel=0.2)
    assert samples[0]["memory_bytes"] > 10**7


def test_bytes_and_waits_are_those_since_the_step_before():
    now = [0.0]
    parts, trace = Parts(lambda: now[0]), Trace()
    meter = Meter(parts, trace)

    def operation(issued, waited, done):
        trace.ops.append(Op("all_reduce", 100, 150, 4, None, issued, waited, done, done))

    parts.begin("backward")
    operation(1.0, 3.0, 4.0)
    now[0] = 5.0
    first = meter(record(1))
    assert first["sent_bytes"] == 150 and first["exposed_seconds"] == 1.0
    assert first["compute_seconds"] == 4.0 and first["parts"]["backward"] == 4.0
    parts.begin("backward")
    operation(5.5, 6.0, 6.5), operation(6.0, 6.25, 7.0)  # they overlap: counted once
    now[0] = 8.0
    second = meter(record(2))
    assert second["sent_bytes"] == 300 and second["exposed_seconds"] == 1.0
    assert meter(record(3))["sent_bytes"] == 0


def test_what_would_be_silently_wrong_is_a_sentence():
    """Parts that nobody begins, and a trace on another clock: all waits would fall outside."""
    with pytest.raises(InputError, match=r"give train\(begin=parts.begin\)"):
        Meter(Parts())(record(1))
    with pytest.raises(InputError, match=r"give Parts\(group.now\)"):
        Meter(Parts(lambda: 1e6), Trace(clock=WallClock()))


def straggling(group, slow: int):
    """Each step computes 2 ms; the slow rank 100 ms more."""
    torch.manual_seed(0)
    parts, told = Parts(group.now), []
    model = DDP(Toy(), group)
    if group.rank == slow:
        model.module.register_forward_pre_hook(lambda *_: time.sleep(0.1))
    peers = Peers(group.size, group.all_reduce, model.finish, model.no_sync)
    meter = Meter(parts, group.trace)
    reporter = Reporter([told.append], lambda: 1.0, measure=meter, speaks=False)
    config = TrainConfig(steps=8)
    train(model, ToyLoader(), config, [reporter], peers, begin=parts.begin)
    return [sample for sample in told if "loss" in sample][2:]


def test_a_slow_rank_is_seen_in_its_compute_and_not_in_its_steps():
    fast, slow = launch(straggling, 1, ranks=2)

    def middle(samples, name):
        return float(np.median([sample[name] for sample in samples]))

    assert middle(slow, "compute_seconds") > middle(fast, "compute_seconds") + 0.05
    assert middle(fast, "exposed_seconds") > 0.05, "it waits for the other"
    steps = middle(slow, "step_seconds"), middle(fast, "step_seconds")
    assert steps[0] == pytest.approx(steps[1], rel=0.3), (
        "whose steps are as long: the naive measure"
    )
    assert fast[0]["sent_bytes"] == slow[0]["sent_bytes"] > 0


def test_on_an_emulated_fabric_the_seconds_are_the_logical_clocks():
    results = launch(straggling, -1, ranks=2, fabric="ethernet-25g")
    total = sum(sample["step_seconds"] for sample in results[0])
    assert 0 < total < results.emulated_seconds
    assert results[0][0]["exposed_seconds"] > 0


def test_the_highest_deviation_of_the_last_minute():
    highest, running = Highest(), Running()
    values = np.random.default_rng(1).normal(5, 1, 400)
    values[100] = 50.0
    zs: list[tuple[float, float]] = []
    for now, value in enumerate(values):
        if running.count >= 25:
            zs.append((now, running.z(value)))
        running.add(value)
        found = highest.add(float(value), float(now))
        recent = [z for at, z in zs if at >= now - 60]
        assert found == (max(recent) if recent else None)
    assert highest.add(math.nan, 401.0) is not None and math.isfinite(highest.running.mean)


def test_the_sensor_is_asked_once_a_second_with_the_share_that_was_computed(monkeypatch):
    now, real = [0.0], [0.0]
    monkeypatch.setattr("minitrain.monitoring.meter.time.monotonic", lambda: real[0])
    parts, sensor = Parts(lambda: now[0]), EmulatedSensor()
    meter = Meter(parts, sensor=sensor)
    looks = []
    for step in range(1, 13):
        parts.begin("data")
        now[0] += 0.1
        parts.begin("forward")
        now[0] += 0.15
        real[0] += 0.25
        looks.append(meter(record(step)).get("gpu_utilisation"))
    assert [place for place, value in enumerate(looks) if value is not None] == [0, 4, 8]
    assert looks[4] == pytest.approx(0.6)
    assert sensor.heat.celsius > 30 and sensor.read(0.0, 1e-9)["gpu_is_emulated"] == 1


def test_a_run_that_diverges_says_at_which_step_and_how():
    model, told = Toy(), []
    with torch.no_grad():
        model.head.weight.fill_(math.inf)
    with pytest.raises(Diverged, match="the run diverged") as raised:
        with Reporter([told.append], lambda: 1.0) as reporter:
            train(model, ToyLoader(), TrainConfig(steps=3), [reporter])
    assert raised.value.step == 1 and math.isnan(told[0]["loss"])
    assert told[-1]["ended"] == "diverged"
