"""Clients that hang up, a full house, an engine that fails, and the end."""

from __future__ import annotations

import signal
import socket
import threading
import time

import httpx
import openai
import pytest

from .serving import serving, slowed, wait_until

LONG = {"model": "small", "prompt": "Once", "max_tokens": 500, "extra_body": {"ignore_eos": True}}


def idle(running) -> bool:
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_blocks_used")
    return all(running.metric(name) == 0 for name in names)


def test_who_hangs_up_frees_his_blocks(running):
    told = running.metric("generation_tokens_total")
    with slowed(running, 0.02):
        stream = running.client.completions.create(stream=True, n=3, **LONG)
        next(iter(stream))
        assert running.metric("kv_cache_blocks_used") >= 1
        assert running.metric("num_requests_running") == 3
        stream.close()
    wait_until(lambda: idle(running))
    assert running.metric("generation_tokens_total") - told < 3 * 500
    assert running.metric('request_success_total{finished_reason="abort"}') == 3


def test_who_waits_for_a_whole_answer_and_hangs_up_frees_them_too(running):
    told = running.metric("generation_tokens_total")
    with pytest.raises(openai.APITimeoutError):
        running.client.with_options(timeout=0.1).completions.create(n=8, **LONG)
    wait_until(lambda: idle(running))
    assert running.metric("generation_tokens_total") - told < 8 * 500


def test_a_full_house_says_when_to_come_again(given):
    with serving(given, max_requests=2) as one, slowed(one, 0.02):
        stream = one.client.completions.create(stream=True, n=2, **LONG)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as caught:
            one.client.completions.create(**LONG)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        stream.close()
        wait_until(lambda: idle(one))
        assert one.client.completions.create(model="small", prompt="a", max_tokens=2).choices


def test_at_the_end_those_here_are_finished(given):
    with serving(given, grace=30) as one:
        stream = one.client.completions.create(stream=True, **(LONG | {"max_tokens": 60}))
        chunks = iter(stream)
        next(chunks)
        one.server.handle_exit(signal.SIGTERM, None)
        rest = list(chunks)
        assert rest[-1].choices[0].finish_reason == "length"
        one.thread.join(10)
        assert not one.thread.is_alive()
        with pytest.raises(openai.APIConnectionError):
            one.client.completions.create(**LONG)


def test_at_the_end_of_the_grace_who_is_left_gets_an_error(given):
    with serving(given, grace=0.2) as one, slowed(one, 0.02):
        stream = one.client.completions.create(stream=True, **LONG)
        whole: list[Exception] = []
        waiting = threading.Thread(target=lambda: whole.append(error_of(one)))
        waiting.start()
        chunks = iter(stream)
        next(chunks)
        wait_until(lambda: len(one.served.loop.engine.requests) == 2)
        one.server.handle_exit(signal.SIGTERM, None)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(chunks)
        waiting.join(10)
        assert isinstance(whole[0], openai.InternalServerError), whole
        assert whole[0].status_code == 503 and "shutting down" in str(whole[0])
        one.thread.join(10)
        assert not one.thread.is_alive() and one.served.loop.engine.scheduler.blocks.used == 0


def test_who_has_connected_before_the_end_and_asks_after_it_is_told(given):
    with serving(given, grace=0) as one, httpx.Client(base_url=one.url, timeout=10) as knocking:
        connected = socket.create_connection(one.address)
        wait_until(lambda: one.server.server_state.connections)
        one.server.handle_exit(signal.SIGTERM, None)
        assert (
            knocking.post("/v1/completions", json={"model": "small", "prompt": "a"}).status_code
            == 503
        )
        time.sleep(0.2)
        connected.sendall(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")
        assert b"503" in connected.recv(1000).partition(b"\r\n")[0]
        one.thread.join(10)
        assert not one.thread.is_alive()


def test_an_engine_that_fails_says_so_to_everybody(given):
    with serving(given) as one:
        stream = one.client.completions.create(stream=True, **LONG)
        chunks = iter(stream)
        next(chunks)

        def fail():
            raise MemoryError("no room")

        one.served.loop.engine.step = fail
        with pytest.raises(openai.APIError, match="the engine failed: MemoryError: no room"):
            list(chunks)
        with pytest.raises(openai.InternalServerError, match="MemoryError"):
            one.client.completions.create(**LONG)
        assert httpx.get(f"{one.url}/health").status_code == 503
        assert one.metric("kv_cache_blocks_used") == 0


def error_of(running) -> Exception | None:
    try:
        running.client.completions.create(**LONG)
    except openai.APIError as error:
        return error


def test_one_answer_that_fails_is_an_error_and_the_server_goes_on(given):
    with serving(given) as one:
        client, norm = one.client.with_options(max_retries=0), one.served.loop.engine.model.norm
        right = norm.weight.detach().clone()
        norm.weight.data.fill_(float("nan"))
        with pytest.raises(
            openai.InternalServerError, match="logits that are no numbers"
        ) as caught:
            client.completions.create(model="small", prompt="a", max_tokens=2)
        assert caught.value.status_code == 503
        norm.weight.data.copy_(right)
        assert client.completions.create(model="small", prompt="a", max_tokens=2).choices[0].text
        assert one.metric('request_success_total{finished_reason="error"}') == 1
