"""What crosses the sandbox's boundary arrives as it was sent, and a forged reply is refused."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from minitrain.lab.failures import SubmissionFailed
from minitrain.lab.sandbox import plain_data
from minitrain.lab.sandbox.limits import Limits
from minitrain.lab.sandbox.loader import Cell, Solution
from minitrain.lab.sandbox.plain_data import PlainDataError
from minitrain.lab.sandbox.request import FRAME, MARK, NONCE_BYTES, Reply, Request, Returned
from minitrain.lab.sandbox.verdict import reply_of
from minitrain.lab.sandbox.watch import Ending

NONCE = bytes(range(16))
CELLS = Solution((Cell("cell 1", "def f():\n    return 1\n", True),), substitutes={"g": b"\x80"})
LIVE = Solution(live=b"pickle", sources={"cell In[3]": "def f(): ..."})
REQUEST = Request(CELLS, "f", b"probe", 2, b"fabric", 3.0)


@pytest.mark.parametrize(
    "request_",
    [
        REQUEST,
        Request(
            LIVE, "f", b"", 0, None, 0.5, Limits(seconds=1.0), {"a.b": "a/b.py"}, ["/x"], NONCE
        ),
    ],
)
def test_a_request_arrives_as_it_was_sent(request_):
    sent = request_.pack()
    assert Request.unpack(sent[:-NONCE_BYTES]) == replace(request_, nonce=bytes(NONCE_BYTES))
    assert sent.endswith(request_.nonce) and NONCE not in sent[:-NONCE_BYTES]


def test_the_map_of_the_boundary_names_every_field():
    for field in fields(Request):
        assert f"\n    {field.name} " in Request.__doc__, field.name


def test_only_a_launch_has_time_to_report():
    assert REQUEST.patience > REQUEST.seconds
    assert replace(REQUEST, ranks=0).patience == REQUEST.seconds


def test_lines_of_a_file_in_cells_stand_where_they_stood():
    cells = (Cell("a.py", "import os\n", True), Cell("a.py", "\n\nx = 1", True))
    assert Solution(cells, sources={"b": "y"}).lines == {
        "a.py": ["import os", "", "x = 1"],
        "b": ["y"],
    }


def test_a_reply_arrives_as_it_was_sent():
    sent = Reply([Returned(torch.arange(3), [], ["x"]).pack()], None, [{"rank": 0}], 1.5, 2.0, "ib")
    assert Reply.unpack(sent.pack(NONCE), NONCE) == sent
    failed = Reply(failure=("died", "words"))
    assert Reply.unpack(failed.pack(NONCE), NONCE) == failed


def framed(body: bytes, nonce: bytes = NONCE, mark: bytes = MARK, longer: int = 0) -> bytes:
    return FRAME.pack(mark, nonce, len(body) + longer) + body


BODY = plain_data.pack({"results": []})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        framed(BODY)[:20],
        framed(BODY, nonce=bytes(16)),
        framed(BODY, mark=b"MTR0"),
        framed(BODY, longer=1),
        framed(BODY) + b"x",
        framed(BODY) * 2,
        framed(b"not plain data"),
        framed(plain_data.pack([1, 2])),
        framed(plain_data.pack({"results": [], "score": 100})),
    ],
)
def test_a_forged_reply_is_refused(data):
    with pytest.raises(PlainDataError):
        Reply.unpack(data, NONCE)


def ended(reply: Reply) -> Ending:
    return Ending(bytearray(reply.pack(NONCE)), status=0)


def test_a_verdict_gives_what_the_probe_returned_on_each_rank():
    sent = Reply([Returned(rank, [], []).pack() for rank in range(2)], seconds=1.0)
    assert reply_of(ended(sent), replace(REQUEST, nonce=NONCE)) == Reply([0, 1], seconds=1.0)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(5), "not as the grader's probe sends it"),
        (Reply([b"junk"]), "not as the grader's probe sends it"),
        (Reply([plain_data.pack({"value": 1})]), "not as the grader's probe sends it"),
        (Reply([Returned(1, 5, []).pack()]), "not as the grader's probe sends it"),
        (Reply(failure=("died",)), "not as the grader's probe sends it"),
        (Reply([Returned(1, ["torch.equal"], []).pack()]), "tampered with torch.equal"),
        (Reply([Returned(1, [], ["opens a socket"]).pack()]), "not allowed: it opens a socket"),
        (Reply(failure=("deadlock", "rank 0 waits")), "rank 0 waits"),
    ],
)
def test_a_verdict_says_why_a_result_counts_for_nothing(reply, said):
    with pytest.raises(SubmissionFailed, match=said):
        reply_of(ended(reply), replace(REQUEST, nonce=NONCE))
