"""Group: each operation against its plain definition, over odd, empty and strided tensors."""

from __future__ import annotations

import time

import pytest
import torch

from minitrain.ranks.errors import RankInputError
from minitrain.ranks.launch import launch

pytestmark = pytest.mark.timeout(120)

SIZES = [0, 1, 7, 64]


def tensors(rank: int, dtype=torch.float64):
    """This rank's inputs: flat ones of each size, one transposed, one with gaps."""
    draw = torch.Generator().manual_seed(rank)
    flat = [torch.randint(-9, 9, (n,), generator=draw).to(dtype) for n in SIZES]
    a, b = torch.randint(-9, 9, (2, 4, 6), generator=draw).to(dtype)
    return [*flat, a.t(), b[:, ::2]]


# ---- collectives, on 1, 2 and 3 ranks ----


def reduce_all(group):
    return {
        op: [group.all_reduce(x, op) for x in tensors(group.rank)]
        for op in ("sum", "avg", "max", "min")
    }


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_reduce_is_the_reduction_over_ranks(ranks):
    stacked = [torch.stack(each) for each in zip(*(tensors(rank) for rank in range(ranks)))]
    expected = {
        "sum": [x.sum(0) for x in stacked],
        "avg": [x.mean(0) for x in stacked],
        "max": [x.amax(0) for x in stacked],
        "min": [x.amin(0) for x in stacked],
    }
    for result in launch(reduce_all, ranks=ranks):
        for op, values in expected.items():
            for got, value in zip(result[op], values):
                torch.testing.assert_close(got, value)


def other_collectives(group):
    n, rank = group.size, group.rank
    found = {"broadcast": [], "all_gather": [], "reduce_scatter": []}
    for x in tensors(rank):
        found["broadcast"].append(group.broadcast(x.clone(), root=n - 1))
        found["all_gather"].append(group.all_gather(torch.zeros(n * x.numel(), dtype=x.dtype), x))
        whole = torch.cat([x.reshape(-1) + 100 * to for to in range(n)])
        output = torch.zeros(x.shape, dtype=x.dtype)
        found["reduce_scatter"].append(group.reduce_scatter(output, whole))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_broadcast_gather_and_scatter_by_definition(ranks):
    inputs = [tensors(rank) for rank in range(ranks)]
    for rank, found in enumerate(launch(other_collectives, ranks=ranks)):
        for i, x in enumerate(inputs[rank]):
            assert torch.equal(found["broadcast"][i], inputs[-1][i])
            gathered = torch.cat([inputs[r][i].reshape(-1) for r in range(ranks)])
            assert torch.equal(found["all_gather"][i], gathered)
            total = sum(inputs[r][i] for r in range(ranks)) + 100 * rank * ranks
            assert torch.equal(found["reduce_scatter"][i], total.reshape(x.shape))


def swap(group, lengths):
    mine = [
        torch.full((lengths[group.rank][to], 2), 10.0 * group.rank + to) for to in range(group.size)
    ]
    incoming = [lengths[source][group.rank] for source in range(group.size)]
    output = torch.empty(sum(incoming), 2)
    group.all_to_all(output, torch.cat(mine), incoming, lengths[group.rank])
    even = group.all_to_all(torch.empty(group.size), torch.arange(group.size) + 10.0 * group.rank)
    return output, even


def test_all_to_all_with_uneven_and_empty_pieces():
    lengths = [[1, 0, 3], [2, 2, 0], [0, 0, 1]]
    for rank, (output, even) in enumerate(launch(swap, lengths, ranks=3)):
        expected = [torch.full((lengths[s][rank], 2), 10.0 * s + rank) for s in range(3)]
        assert torch.equal(output, torch.cat(expected))
        assert even.tolist() == [rank, 10 + rank, 20 + rank]


# ---- messages ----


def shift(group):
    """Each tensor to the next rank, from the one before; ends with a large one both ways."""
    found = []
    for x in tensors(group.rank):
        landing = torch.zeros_like(x.t()).t() if x.dim() > 1 else torch.zeros_like(x)
        right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        found.append(group.exchange(x, right, landing, left))
    large = torch.full((2_000_000,), float(group.rank))
    found.append(group.exchange(large, right, torch.empty_like(large), left)[::500_000].clone())
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_exchange_shifts_around_the_ring_at_any_size(ranks):
    for rank, found in enumerate(launch(shift, ranks=ranks)):
        before = (rank - 1) % ranks
        for got, sent in zip(found, tensors(before)):
            assert torch.equal(got, sent)
        assert found[-1].tolist() == [before] * 4


def test_send_and_recv_of_strided_and_empty_tensors_keep_their_order():
    def talk(group):
        whole = torch.arange(12.0).reshape(3, 4)
        pieces = [whole.t(), whole[:, 1], whole[:0], whole[1, 2]]
        if group.rank == 0:
            return [group.send(piece, to=1).shape for piece in pieces]
        landing = torch.zeros(3, 4)
        found = [group.recv(landing.t(), source=0)]  # into a strided view of landing
        found += [group.recv(torch.zeros(piece.shape), source=0) for piece in pieces[1:]]
        return [landing, *found[1:]]

    _, (landing, column, none, scalar) = launch(talk, ranks=2)
    assert torch.equal(landing, torch.arange(12.0).reshape(3, 4))
    assert column.tolist() == [1.0, 5.0, 9.0] and none.shape == (0, 4) and scalar.item() == 6.0


def test_works_may_be_waited_for_in_any_order_and_twice():
    def works(group):
        a, b = torch.tensor([1.0]), torch.tensor([10.0])
        first, second = group.all_reduce(a, async_op=True), group.all_reduce(b, async_op=True)
        other = 1 - group.rank
        landing = torch.zeros(2)
        arriving, leaving = group.irecv(landing, other), group.isend(a.repeat(2) * 0 + other, other)
        values = [second.wait(), first.wait(), first.wait(), arriving.wait(), leaving.wait()]
        return [value.tolist() for value in values[:4]], first.is_completed()

    for rank, (values, completed) in enumerate(launch(works, ranks=2)):
        assert values == [[20.0], [2.0], [2.0], [rank, rank]] and completed


# ---- the trace ----


def traffic(group):
    x = torch.ones(12)  # 48 bytes
    group.all_reduce(x)
    group.broadcast(x, root=1)
    group.reduce_scatter(torch.empty(4), x)
    group.all_gather(torch.empty(36), x)
    group.all_to_all(torch.empty(12), x)
    group.exchange(x, (group.rank + 1) % 3, torch.empty(12), (group.rank - 1) % 3)
    group.split(group.rank % 2)
    group.barrier()


def test_every_operation_is_recorded_with_its_bytes():
    for rank, trace in enumerate(launch(traffic, ranks=3).traces):
        sent = {op.kind: (op.payload_bytes, op.sent_bytes) for op in trace.ops}
        assert sent == {
            "all_reduce": (48, 64),
            "broadcast": (48, 0 if rank == 0 else 48),  # rank 0 ends the chain 1, 2, 0
            "reduce_scatter": (48, 32),
            "all_gather": (144, 96),
            "all_to_all": (48, 32),
            "recv": (48, 0),
            "send": (48, 48),
            "barrier": (0, 0),
        }
        assert len(trace.ops) == 8  # splitting is no traffic of the learner's
        assert {op.peer for op in trace.select("send")} == {(rank + 1) % 3}
        for op in trace.ops:
            assert op.issued <= op.waited <= op.done


def overlapping(group):
    """One all-reduce that ends while the rank does other work, one that is waited for at once."""
    work = group.all_reduce(torch.ones(4), async_op=True)
    while work.op.finished is None:
        time.sleep(0.01)
    work.wait()
    group.all_reduce(torch.ones(4))


def test_an_operation_ends_when_it_ended_and_not_when_it_was_asked_for():
    for trace in launch(overlapping, ranks=2).traces:
        beside, exposed = trace.ops
        assert beside.issued < beside.finished < beside.waited and exposed.finished is None
        assert trace.hidden_seconds() >= beside.finished - beside.issued
        assert trace.exposed_seconds() >= exposed.done - exposed.waited


# ---- smaller groups ----


def in_columns(group):
    pair = group.split(color=group.rank % 2)
    reverse = group.subgroup([3, 1])
    alone = group.split(color=0 if group.rank == 2 else None)
    total = pair.all_reduce(torch.tensor([group.rank])).item()
    found = [pair.rank, pair.size, list(pair.ranks), total]
    if pair.rank == 0:
        pair.send(torch.tensor([group.rank]), to=1)
    else:
        found.append(pair.recv(torch.tensor([0]), source=0).item())
    place = reverse.rank if reverse else None
    if reverse:  # rank 3 of all is rank 0 of these
        got = reverse.exchange(torch.tensor([group.rank]), 1 - place, torch.tensor([0]), 1 - place)
        assert got.item() == 4 - group.rank
    below = pair.split(color=group.rank)
    return found, place, alone.size if alone else None, list(below.ranks)


def test_subgroups_have_ranks_of_their_own_and_share_the_trace():
    results = launch(in_columns, ranks=4)
    assert results[0] == ([0, 2, [0, 2], 2], None, None, [0])
    assert results[1] == ([0, 2, [1, 3], 4], 1, None, [1])
    assert results[2] == ([1, 2, [0, 2], 2, 0], None, 1, [2])
    assert results[3] == ([1, 2, [1, 3], 4, 1], 0, None, [3])
    assert [trace.count() for trace in results.traces] == [2, 4, 2, 4]


# ---- what a caller can get wrong ----


@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda g: g.send(torch.ones(1), to=g.rank), "it would wait for ever"),
        (lambda g: g.recv(torch.ones(1), source=-1), "cannot receive from rank -1 of 2"),
        (lambda g: g.send([1.0], to=1 - g.rank), "send takes a tensor, not list"),
        (lambda g: g.broadcast(torch.ones(1), root=2), "root 2 is not a rank of this group"),
        (
            lambda g: g.all_reduce(torch.ones(1), op="mean"),
            "no reduction is called 'mean': did you mean 'avg'",
        ),
        (lambda g: g.all_reduce(torch.tensor([1]), op="avg"), "no avg of torch.int64"),
        (lambda g: g.all_gather(torch.ones(3), torch.ones(2)), "must have 2 x 2 elements"),
        (lambda g: g.reduce_scatter(torch.ones(1), torch.ones(3)), "must have 2 x 1 elements"),
        (lambda g: g.all_to_all(torch.ones(3), torch.ones(2)), "use 2 or 4"),
        (
            lambda g: g.all_to_all(torch.ones(2), torch.ones(3)),
            "3 rows of input cannot be split over 2 ranks",
        ),
        (lambda g: g.all_to_all(torch.ones(2), torch.ones(3)), "give input_splits, one number"),
        (lambda g: g.all_to_all(torch.ones(2), torch.ones(2), None, [2, 1]), "of sum 2"),
        (lambda g: g.subgroup([0, 0]), "must be different ranks from 0 to 1"),
    ],
)
def test_a_wrong_call_is_one_clear_sentence(wrong, words):
    with pytest.raises(RankInputError) as caught:
        launch(wrong, ranks=2, timeout=20)
    assert words in str(caught.value)


def overlapping_subgroups(group):
    """Rank 1 is in two of them, the others in one: their names must agree all the same."""
    left, right = group.subgroup([0, 1]), group.subgroup([1, 2])
    found = []
    for part in (left, right):
        if part is not None:
            time.sleep(0.3 * (part.rank == 0))  # long enough for a false alarm
            found.append(part.all_reduce(torch.ones(1)).item())
    return found


def test_overlapping_subgroups_are_no_deadlock():
    assert launch(overlapping_subgroups, ranks=3) == [[2.0], [2.0, 2.0], [2.0]]


def test_averages_in_low_precision_and_of_reduce_scatter():
    def average(group):
        x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16) * (group.rank + 1)
        half = torch.empty(1)
        group.reduce_scatter(half, torch.tensor([1.0, 2.0]) * (group.rank + 1), op="avg")
        return group.all_reduce(x, op="avg"), half

    for rank, (whole, half) in enumerate(launch(average, ranks=2)):
        assert whole.tolist() == [1.5, 3.0] and whole.dtype == torch.bfloat16
        assert half.item() == [1.5, 3.0][rank]
