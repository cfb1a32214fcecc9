"""200 streams at once, a pool that is too small, clients that hang up, and SIGTERM in the middle."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter

import httpx
import psutil
import pytest

from minitrain.apps.load.offered import waited_for

from .serving import serving, slowed, wait_until

STREAMS, WAVES, GONE = 200, 2, 0.25


@pytest.mark.full
@pytest.mark.timeout(120)
def test_no_request_is_lost_and_no_block(given):
    with serving(given, num_blocks=64, max_requests=STREAMS, grace=0.5) as one:
        blocks, process, bytes_held = one.served.loop.engine.scheduler.blocks, psutil.Process(), []
        for wave in range(WAVES):
            ends = waited_for(crowd(one, wave))
            assert set(ends) == {"finished", "hung up"} and ends.total() == STREAMS, ends
            wait_until(lambda: blocks.used == 0 and not one.served.loop.engine.requests)
            bytes_held.append(process.memory_info().rss)
        assert one.metric("num_preemptions_total") > 0, "the pool was never full"
        with slowed(one, 0.05):  # so that the end comes in the middle
            ends = waited_for(crowd(one, WAVES, end_after=1.0))
        assert not any(end.startswith("lost") for end in ends), ends
        assert ends["told of the end"] > 0, ends
        assert ends.total() == STREAMS
        one.thread.join(20)
        assert not one.thread.is_alive() and blocks.used == 0
        grown = bytes_held[-1] - bytes_held[0]
        print(f"last wave: {dict(ends)}; memory grew by {grown / 2**20:.1f} MiB over a wave")
        assert grown < 30 * 2**20


async def crowd(one, seed: int, end_after: float | None = None) -> Counter[str]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=one.url, timeout=60, limits=limits) as client:
        tasks = [asyncio.create_task(ask(client, seed * STREAMS + i)) for i in range(STREAMS)]
        if end_after is not None:
            await asyncio.sleep(end_after)
            one.server.handle_exit(signal.SIGTERM, None)
        return Counter(await asyncio.gather(*tasks))


async def ask(client: httpx.AsyncClient, number: int) -> str:
    """How it ended; "lost" is an end without a word, and says how it was noticed."""
    chance = random.Random(number)
    leaves = chance.random() < GONE
    body = {
        "model": "small",
        "prompt": chance.choices(range(3, 300), k=chance.randint(1, 60)),
        "max_tokens": chance.randint(8, 48),
        "ignore_eos": True,
        "stream": True,
        "seed": number,
    }
    last = ""
    try:
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            if reply.status_code != 200:
                return "told of the end" if reply.status_code == 503 else f"lost: {reply}"
            async for line in reply.aiter_lines():
                if '"error"' in line:
                    return "told of the end"
                if leaves and line:
                    return "hung up"
                if line == "data: [DONE]":
                    return "finished" if '"length"' in last else f"lost: {last}"
                last = line or last
    except httpx.ConnectError:
        return "at a closed door"  # it came after the end
    except httpx.HTTPError as error:
        return f"lost: {error!r}"
    return "lost: its stream ended"
