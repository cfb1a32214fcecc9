from __future__ import annotations

import itertools
import json
import time

import pytest

from minitrain.errors import InputError
from minitrain.measure.parts import Parts, Span
from minitrain.measure.traffic import Op
from minitrain.monitoring.meter import Meter
from minitrain.monitoring.step_trace import StepTracer, events, trace_files
from minitrain.parallel.ddp import DDP
from minitrain.ranks.launch import launch
from minitrain.training.loop import Peers, TrainConfig, train
from minitrain.training.report import Reporter

from ..training.toys import Toy, ToyLoader


def complete(trace: dict, rank: int, row: int) -> list[dict]:
    found = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    return [e for e in found if (e["pid"], e["tid"]) == (rank, row)]


def check_format(trace: dict) -> None:
    """Chrome's trace event format: what Perfetto asks of a complete event and of a name."""
    for event in json.loads(json.dumps(trace, allow_nan=False))["traceEvents"]:
        assert event["ph"] in ("X", "M") and isinstance(event["pid"], int) and event["name"]
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] > 0 and isinstance(event["tid"], int)
        else:
            assert event["args"]


def test_spans_and_operations_become_rows_in_microseconds():
    spans = [Span("forward", 1.0, 1.5), Span("backward", 1.5, 2.5), Span("nothing", 2.5, 2.5)]
    op = Op("all_reduce", 100, 150, 4, None, 1.75, 2.0, 2.25, 2.5)
    never = Op("send", 1, 1, 4, 2, issued=2.0)
    trace = {"traceEvents": events(3, spans, [op, never], shift=10.0)}
    check_format(trace)
    compute, wire, waits = (complete(trace, 3, row) for row in range(3))
    assert [(e["name"], e["ts"], e["dur"]) for e in compute] == [
        ("forward", 11e6, 0.5e6),
        ("backward", 11.5e6, 1e6),
    ]
    assert [(e["name"], e["ts"], e["dur"]) for e in wire] == [("all_reduce", 11.75e6, 0.5e6)]
    assert wire[0]["args"] == {"ranks": 4, "payload_bytes": 100, "sent_bytes": 150}
    assert [(e["ts"], e["dur"]) for e in waits] == [(12e6, 0.5e6)]


def traced(group, folder):
    parts = Parts(group.now)
    model = DDP(Toy(), group)
    meter = Meter(parts, group.trace)
    reporter = Reporter([], lambda: 1.0, measure=meter, speaks=False)
    reporter.sinks = [lambda sample: None]
    tracer = StepTracer(folder, 3, meter, group)
    peers = Peers(group.size, group.all_reduce, model.finish, model.no_sync)
    if group.rank == 1:
        model.module.register_forward_pre_hook(lambda *_: time.sleep(0.2))
    train(model, ToyLoader(), TrainConfig(steps=5), [reporter, tracer], peers, begin=parts.begin)


def test_a_step_of_two_ranks_is_one_file_on_one_clock(tmp_path):
    launch(traced, tmp_path, ranks=2)
    (path,) = trace_files(tmp_path)
    assert path.name == "trace-step-3.json"
    trace = json.loads(path.read_text())
    check_format(trace)
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert names == ["rank 0", "rank 1"]
    ends = []
    for rank in (0, 1):
        parts = complete(trace, rank, 0)
        assert {"data", "forward", "backward", "average", "optimizer"} <= {e["name"] for e in parts}
        for before, after in itertools.pairwise(parts):
            assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=1.0)
        ends.append(parts[-1]["ts"] + parts[-1]["dur"])
        assert complete(trace, rank, 1), "what was on the wire"
    slow = next(e for e in complete(trace, 1, 0) if e["name"] == "forward")
    assert slow["dur"] > 200_000
    waited = sum(e["dur"] for e in complete(trace, 0, 2))
    assert waited > 100_000, "the other rank waits"
    assert abs(ends[0] - ends[1]) < 150_000, "they leave the step together"


def test_a_step_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="whole number, 1 or more"):
        StepTracer(tmp_path, 0, Meter(Parts()))
