"""`load` against our own server, and against ones that are broken in known ways."""

from __future__ import annotations

import asyncio
import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from minitrain.apps.load.offered import Server, offer, served_model, waited_for
from minitrain.inference.load import Ask, asks, lengths_in

from ..command_line import minitrain
from ..serve.conftest import given as given
from ..serve.serving import serving, slowed


@pytest.fixture(scope="module")
def running(given):
    with serving(given, max_requests=8) as one:
        yield one


def offered(server: Server, wanted: list[Ask]):
    return waited_for(offer(server, wanted))


def test_every_request_is_told_as_many_tokens_as_it_asked_for(running):
    wanted = asks(lengths_in(8, (4, 40), (2, 12), 0), 50.0, 300, seed=0, shared=16)

    async def cell():
        return waited_for(
            served_model(Server(running.url))
        )  # a loop runs already, as in a notebook

    server = Server(running.url + "/v1/", waited_for(cell()))
    ended = []
    told = waited_for(offer(server, wanted, ended.append))
    assert server.model == "small" and set(map(id, ended)) == set(map(id, told))
    for ask, one in zip(wanted, told):
        assert one.failed is None
        assert (one.prompt_tokens, one.tokens) == (len(ask.prompt), ask.new_tokens)
        assert 0 < len(one.times.tokens) <= one.tokens
        assert one.times.arrived <= one.times.tokens[0] <= one.times.tokens[-1] <= one.times.ended
    sent = [one.times.arrived - told[0].times.arrived for one in told]
    assert sent == pytest.approx([ask.at for ask in wanted])


def test_the_load_is_open(running):
    """All are sent before the first one's answer has ended: a closed loop would send none."""
    wanted = [Ask(place * 0.02, (5, 6, 7), 4) for place in range(6)]
    with slowed(running, 0.2):
        told = offered(Server(running.url, "small"), wanted)
    assert all(one.failed is None for one in told)
    assert max(one.times.arrived + one.late for one in told) < told[0].times.ended
    assert all(one.times.total_seconds > 0.6 for one in told)


def test_a_client_that_is_late_says_so_and_hides_nothing(running, monkeypatch):
    async def oversleeps(seconds: float, sleep=asyncio.sleep) -> None:
        await sleep(seconds + 0.3)

    monkeypatch.setattr(asyncio, "sleep", oversleeps)
    (told,) = offered(Server(running.url, "small"), [Ask(0.0, (5, 6), 2)])
    assert 0.3 <= told.late < told.times.first_token_seconds


def test_a_full_queue_and_other_refusals_are_failures_in_the_servers_words(running):
    wanted = [Ask(0.0, (5, 6, 7), 20)] * 12
    with slowed(running, 0.1):  # the last one comes while the first is here
        told = offered(Server(running.url, "small"), wanted)
    failed = [one.failed for one in told if one.failed]
    assert len(failed) == 4 and all(why.startswith("429: server full: 8 of 8") for why in failed)
    (told,) = offered(Server(running.url, "other"), wanted[:1])
    assert told.failed.startswith("404: the model 'other' is not served here")
    (told,) = offered(Server(running.url, "small", timeout=0.001), wanted[:1])
    assert told.failed.endswith("Timeout")


EVENT = {"choices": [{"index": 0, "text": "a", "finish_reason": None}]}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([json.dumps(EVENT)], "the stream broke off"),
        ([json.dumps(EVENT), '{"error": {"message": "the engine failed"}}'], "the engine failed"),
        (["{half"], "sent what is not JSON: {half"),
    ],
)
def test_an_answer_that_is_not_complete_has_failed(lines, why):
    with answering("".join(f"data: {line}\n\n" for line in lines)) as url:
        (told,) = offered(Server(url, "x"), [Ask(0.0, (5,), 2)])
    assert why in told.failed


def test_several_tokens_in_one_piece_are_counted_by_the_usage():
    chunks = [EVENT, EVENT, {"choices": [{"text": "", "finish_reason": "length"}]}]
    chunks.append({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 9}})
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    with answering(text) as url:
        (told,) = offered(Server(url, "x"), [Ask(0.0, (5,), 9)])
    assert told.failed is None and told.tokens == 9 and len(told.times.tokens) == 2


def test_the_command_prints_draws_and_writes(running, tmp_path):
    picture, file, trace = (tmp_path / name for name in ("load.svg", "load.json", "trace.csv"))
    trace.write_text("prompt_tokens,new_tokens\n20,4\n12,6\n")
    words = [
        "--rates",
        "40,inf",
        "--requests",
        "6",
        "--shared",
        "16",
        "--seed",
        "3",
        "--vocabulary",
        "300",
    ]
    files = ["--picture", str(picture), "--json", str(file), "--trace", str(trace)]
    done = minitrain("load", "--url", running.url, *words, *files, "--api-key", "secret")
    assert done.returncode == 0, done.stderr
    assert "at once" in done.stdout and "40/s" in done.stdout and "goodput" in done.stdout
    text = file.read_text()
    rates = json.loads(text)["rates"]
    assert "secret" not in text and "NaN" not in text and [r["rate"] for r in rates] == [40, "inf"]
    for rate in rates:
        assert rate["requests"] == 6 and rate["failed"] == {} and rate["new_tokens"] == 30
        assert rate["prompt_tokens"] == 6 * 32
        waits = rate["first_token_seconds"], rate["total_seconds"]
        assert all(0 < by["p50"] <= by["p99"] for by in waits) and waits[0]["p50"] < waits[1]["p50"]
        assert rate["goodput_per_second"] == pytest.approx(rate["met"] / rate["seconds"])
    one_token = ["--requests", "2", "--rates", "inf", "--vocabulary", "300", "--new-tokens", "1"]
    minitrain("load", "--url", running.url, *one_token, "--json", str(file))
    (rate,) = json.loads(file.read_text())["rates"]
    assert rate["between_tokens_seconds"] == {"p50": None, "p90": None, "p99": None}
    drawn = picture.read_text()
    assert all(words in drawn for words in ("first token", "between tokens", "end to end", "p99"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "other"], "does not serve the longest request"),
        (["--prompt-tokens", "600"], "a prompt of 600 tokens"),
        (["--vocabulary", "1e6"], "is none of the model's 0 to 299"),
    ],
)
def test_what_no_rate_could_be_served_is_told_before_the_sweep(running, words, said):
    sure = ["--requests", "4", "--seed", "1", "--vocabulary", "300"]
    done = minitrain("load", "--url", running.url, *sure, *words)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_nobody_there_or_somebody_else():
    done = minitrain("load", "--url", "http://127.0.0.1:9")
    assert done.returncode == 2 and "no server answers at http://127.0.0.1:9" in done.stderr
    assert "minitrain serve --model stories15M" in done.stderr
    with answering("hello") as url:
        done = minitrain("load", "--url", url)
    assert done.returncode == 2 and "is it a server with OpenAI's interface?" in done.stderr


class answering(socketserver.ThreadingTCPServer):
    """A server that answers everything with the same text."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, text: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            do_POST = do_GET

            def log_message(self, *words: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()
