"""Each part of survival alone: spikes, slow ranks, corruption, the log, notices, shares of a batch."""

from __future__ import annotations

import http.server
import threading
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.parallel.ddp import DDP
from minitrain.ranks.errors import ConnectionLost
from minitrain.ranks.launch import launch
from minitrain.reliability.corruption import fingerprint, odd_ranks, repeats, replicas_agree
from minitrain.reliability.elastic import Share, most_ranks, share_of_batch
from minitrain.reliability.events import EventLog, last_words, silent_ranks
from minitrain.reliability.notice import address_of, noticed_at, worth_saving
from minitrain.reliability.spikes import OwnNorms, Running, SpikeGuard, norms_out_of_line
from minitrain.reliability.stragglers import slow_ranks

from ..training.toys import random_batch, toy_state

NAN, INFINITE = float("nan"), float("inf")


def feed(guard, losses, norm=1.0):
    """Steps with these losses -> which were taken."""
    taken = []
    for loss in losses:
        taken.append(guard(loss, norm))
        guard.state.step += taken[-1]
    return taken


def steady(count):
    return [2.0 + 0.05 * (-1) ** i for i in range(count)]


@pytest.mark.parametrize("bad", [9.0, NAN, INFINITE, -INFINITE])
def test_one_bad_batch_is_skipped_and_a_falling_loss_is_not(bad):
    guard = SpikeGuard(toy_state(), warmup=10)
    assert feed(guard, steady(20)) == [True] * 20
    assert feed(guard, [bad, 2.0]) == [False, True] and guard.rollbacks == 0
    falling = SpikeGuard(toy_state(), warmup=10)
    assert all(feed(falling, [5 * 0.97**i for i in range(100)]))


def test_the_warmup_lets_spikes_pass_and_a_norm_alone_is_enough(tmp_path):
    log = EventLog(tmp_path / "log")
    guard = SpikeGuard(toy_state(), log, warmup=10, whose=lambda: [1])
    taken = feed(guard, [2.0, 50.0, NAN, 2.0])
    assert taken == [True, True, False, True], "only what is not finite is skipped"
    assert [e["ranks"] for e in log.read()] == [[1]], "the log names whose step it was"
    feed(guard, steady(100))
    assert not guard(2.0, 300.0) and guard(2.0, 1.0)


def test_after_three_in_a_row_state_and_step_are_those_of_the_older_copy(tmp_path):
    state, log = toy_state(), EventLog(tmp_path / "log")
    guard = SpikeGuard(state, log, warmup=5, back=10, patience=3)
    weight = state.model.head.weight
    for loss in steady(35):
        with torch.no_grad():
            weight.fill_(float(state.step))
        feed(guard, [loss])
    assert feed(guard, [50.0, 50.0]) == [False, False] and state.step == 35
    assert feed(guard, [50.0]) == [False]
    assert state.step == 20 and weight[0, 0] == 20, "copies at 20 and 30: the older one"
    said = [(e["event"], e["step"]) for e in log.read()]
    assert said == [("skipped", 35)] * 3 + [("rolled back", 20)]
    assert log.read("rolled back")[0]["since"] == 35
    assert feed(guard, [2.0])[0]


def test_it_does_not_go_back_for_ever():
    guard = SpikeGuard(toy_state(), warmup=5, patience=1, most=2)
    feed(guard, steady(10))
    feed(guard, [50.0, 50.0])
    with pytest.raises(InputError, match=r"2 times back from step .* still spikes"):
        guard(50.0, 1.0)
    with pytest.raises(InputError, match="give numbers over 0"):
        SpikeGuard(toy_state(), z=0)


def test_of_two_or_more_norms_those_out_of_line_are_named():
    assert norms_out_of_line([1.0, NAN]) == [1] and norms_out_of_line([INFINITE, 90.0, 1.0]) == [0]
    assert norms_out_of_line([1.0, 90.0]) == [1] and norms_out_of_line([90.0, 1.0, 1.2]) == [0]
    assert norms_out_of_line([80.0, 90.0, 85.0]) == [], "all alike: it is nobody's"


def spoilt(group, cases):
    return [one_spoilt(group, *case) for case in cases]


def one_spoilt(group, spoilt_rank, factor):
    """Ranks to name and the averaged norm's finiteness, after a backward with one spoilt part."""
    state = toy_state(seed=0)
    norms = OwnNorms(state.model, group)
    wrapped = DDP(state.model, group)
    weight = state.model.head.weight
    if group.rank == spoilt_rank:
        weight.register_hook(lambda gradient: gradient * factor)
    batch = random_batch(2, valid=1.0, seed=group.rank)
    logits = wrapped(batch.tokens, batch.documents, batch.positions)
    logits.square().mean().backward()
    wrapped.finish()
    return norms.out_of_line(), bool(weight.grad.isfinite().all())


def test_whose_gradient_it_was_is_known_after_the_average():
    cases = [(2, NAN), (0, 1e4), (None, 1.0)]
    assert launch(spoilt, cases, ranks=3) == [[([2], False), ([0], True), ([], True)]] * 3


def ends(log, rank, error):
    with pytest.raises(type(error)):
        with last_words(log.of(rank), lambda: 7):
            raise error


def test_who_ended_without_a_word(tmp_path):
    log = EventLog(tmp_path / "log")
    assert silent_ranks(log) == [], "no session yet"
    log.write("began", ranks=4)
    assert silent_ranks(log) == [], "none had a word: it ended well, or the power was gone"
    ends(log, 0, ConnectionLost("closed by peer"))
    ends(log, 3, ValueError("out of room\nand more"))
    log.of(1).write("slow", 3)
    assert silent_ranks(log) == [1, 2], "what is said on the way is no last word"
    said = [(e["event"], e["rank"], e["step"], e.get("said")) for e in log.read()[1:3]]
    assert said == [("cut off", 0, 7, None), ("failed", 3, 7, "ValueError: out of room")]
    log.write("resumed", 7, ranks=2)
    log.of(1).write("stuck")
    assert silent_ranks(log) == [0], "of the last session alone"
    with last_words(log, lambda: 7):
        pass
    assert len(log.read()) == 6


def test_slow_by_compute_and_not_by_noise():
    assert slow_ranks([1.0, 1.0, 1.3, 1.01]) == [2]
    assert slow_ranks([1.0, 1.0, 1.05, 1.0]) == [], "under the factor"
    assert slow_ranks([1.0, 1.4, 0.7, 1.2, 0.9, 1.1]) == [], "within what ranks differ anyway"


TENSORS = [torch.float32, torch.bfloat16, torch.int64, torch.uint8]


@settings(deadline=None)
@given(st.sampled_from(TENSORS), st.integers(1, 40), st.data())
def test_any_one_flipped_bit_changes_the_fingerprint(dtype, size, data):
    tensors = [torch.arange(size).to(dtype), torch.arange(size).to(dtype)]
    before = fingerprint(tensors)
    number = data.draw(st.integers(0, 1))
    place = data.draw(st.integers(0, tensors[number].nbytes - 1))
    tensors[number].view(torch.uint8)[place] ^= 1 << data.draw(st.integers(0, 7))
    assert fingerprint(tensors) != before


def test_a_fingerprint_knows_order_and_nan():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    assert fingerprint([a]) != fingerprint([b]) and fingerprint([a, b]) != fingerprint([b, a])
    c = torch.tensor([NAN, 2.0])
    assert fingerprint([c]) == fingerprint([c.clone()])


def odd(group, rows, folder):
    """Of each row, which has a value for each rank: who is odd, and whether all agree."""
    log, found = EventLog(folder / "log", group.rank), []
    for step, row in enumerate(rows):
        mine = torch.tensor(row[group.rank])
        found.append((odd_ranks(group, mine), replicas_agree(group, [mine], log, step)))
    return found


def test_the_majority_is_right_and_without_one_nobody_is(tmp_path):
    found = launch(odd, [(5, 5, 7), (5, 5, 5), (5, 7, 6)], tmp_path, ranks=3)
    assert found == [[([2], False), ([], True), ([0, 1, 2], False)]] * 3
    said = [(e["event"], e["rank"], e["step"]) for e in EventLog(tmp_path / "log").read()]
    assert sorted(said) == [("corrupt", rank, 2) for rank in (0, 1)] + [
        ("corrupt", 2, step) for step in (0, 2)
    ]


def test_a_step_that_does_not_repeat_is_found():
    weight, faults = torch.randn(4, 4), iter([0.0, 1e-7])
    assert repeats(lambda: [weight @ torch.randn(4)]), "the same random numbers both times"
    assert not repeats(lambda: [weight @ torch.ones(4) + next(faults)])


def append(group, path):
    for step in range(50):
        EventLog(path, group.rank).write("step", step, text="x" * 200)


def test_lines_of_many_ranks_do_not_mix_and_half_a_line_is_left_out(tmp_path):
    path = tmp_path / "a" / "log.jsonl"
    launch(append, path, ranks=4)
    with open(path, "a") as file:
        file.write('{"event": "st')
    lines = EventLog(path).read("step")
    assert sorted((e["rank"], e["step"]) for e in lines) == [*product(range(4), range(50))]
    assert EventLog(tmp_path / "nowhere").read() == []
    assert set(lines[0]) == {"time", "event", "rank", "step", "text"}


class Cloud(http.server.BaseHTTPRequestHandler):
    """A cloud's metadata; behind a token, as AWS's newer machines, which answer 401 without one."""

    answers: dict[str, bytes]
    token: str | None = None

    def do_PUT(self):
        assert self.path == "/latest/api/token"
        assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self.answer(200, self.token.encode())

    def do_GET(self):
        known = self.headers["X-aws-ec2-metadata-token"] == self.token
        found = self.answers.get(self.path)
        self.answer(401 if not known else 404 if found is None else 200, found or b"")

    def answer(self, code, data):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("token", [None, "sesame"])
def test_a_clouds_notice(token):
    answers = {
        "/no": b"FALSE",
        "/empty": b"",
        "/yes": b"TRUE",
        "/aws/action": b'{"action": "stop"}',
    }
    handler = type("Handler", (Cloud,), {"answers": answers, "token": token})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        root = f"http://127.0.0.1:{server.server_port}"
        try:
            noticed = {path for path in (*answers, "/none") if noticed_at(root + path)}
        finally:
            server.shutdown()
    assert noticed == {"/yes", "/aws/action"}
    assert not noticed_at(f"{root}/yes"), "no server, no notice"


def test_a_notice_in_a_file(tmp_path):
    file = tmp_path / "stop here"
    address = address_of(file.as_uri())
    assert not noticed_at(address), "no file, no notice"
    file.write_text("")
    assert not noticed_at(address), "it is being written"
    file.write_text("SIGTERM")
    assert noticed_at(address)
    for wrong in ("stop", "file:stop", "file://host/stop", "/stop"):
        with pytest.raises(ValueError, match="no http:// or file:/// address"):
            address_of(wrong)


def test_shares_of_a_batch():
    assert share_of_batch(12, 4, 12) == Share(3, 1)
    assert share_of_batch(12, 2, 3) == Share(3, 2)
    assert share_of_batch(12, 1, 5) == Share(4, 3)
    assert most_ranks(12, 5) == 4 and most_ranks(12, 3) == 3
    with pytest.raises(InputError, match="12 rows of a batch cannot be split over 5 ranks"):
        share_of_batch(12, 5, 4)


def test_whether_a_save_fits_into_the_notice():
    assert worth_saving(10, 5, 30) and not worth_saving(40, 5, 30)
    with pytest.raises(InputError):
        worth_saving(-1, 0, 30)


def test_the_running_mean_is_plain_at_first_and_forgets():
    running = Running(alpha=0.9)
    values = torch.randn(5, dtype=torch.float64).tolist()
    for value in values:
        running.add(value)
    assert running.mean == pytest.approx(sum(values) / 5)
    variance = torch.tensor(values, dtype=torch.float64).var(unbiased=False)
    assert running.variance == pytest.approx(variance.item())
    for _ in range(300):
        running.add(7.0)
    assert running.mean == pytest.approx(7.0)
