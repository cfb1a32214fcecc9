"""The server's Prometheus metrics, and the state shown on its page.

Names are vLLM's, with our prefix; kv_cache_usage_perc is a fraction from 0 to 1, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from minitrain.inference.engine.answer import Output
from minitrain.inference.engine.engine import Engine
from minitrain.inference.engine.request import Times

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120)
REASONS = ("stop", "length", "abort")


class Metrics:
    """Written only by the engine's thread, read by any."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.running = self._of(Gauge, "num_requests_running", "requests in the batch")
        self.waiting = self._of(Gauge, "num_requests_waiting", "requests without blocks")
        self.usage = self._of(Gauge, "kv_cache_usage_perc", "blocks in use, of all; 1 is full")
        self.blocks_used = self._of(Gauge, "kv_cache_blocks_used", "blocks that requests hold")
        self.bytes_used = self._of(Gauge, "kv_cache_bytes_used", "of keys and values in them")
        self.left = self._of(Counter, "kv_cache_blocks_left_window", "given back out of a window")
        self.blocks = self._of(Gauge, "kv_cache_blocks", "blocks in the pool")
        self.preemptions = self._of(Counter, "num_preemptions", "requests that lost their blocks")
        self.queried = self._of(Counter, "prefix_cache_queries", "tokens looked up")
        self.hit = self._of(Counter, "prefix_cache_hits", "tokens found")
        self.prompt_tokens = self._of(Counter, "prompt_tokens", "tokens of prompts taken in")
        self.generated = self._of(Counter, "generation_tokens", "tokens generated")
        self.drafted = self._of(Counter, "spec_decode_num_draft_tokens", "tokens drafted")
        self.kept = self._of(
            Counter, "spec_decode_num_accepted_tokens", "drafted tokens that were accepted"
        )
        self.ended = self._of(Counter, "request_success", "requests ended", ["finished_reason"])
        self.first = self._seconds("time_to_first_token_seconds")
        self.between = self._seconds("inter_token_latency_seconds")
        self.total = self._seconds("e2e_request_latency_seconds")
        self.queued = self._seconds("request_queue_time_seconds")
        self.step = self._seconds("engine_step_seconds")
        for reason in REASONS:
            self.ended.labels(reason)  # present from the start, at 0
        self.seen_queried = self.seen_hit = self.seen_left = 0

    def count_step(self, engine: Engine, outputs: Sequence[Output]) -> None:
        """Counts a step and its outputs."""
        step = engine.steps[-1]
        self.step.observe(step.seconds)
        self.preemptions.inc(step.preemptions)
        self.generated.inc(sum(output.drawn is not None for output in outputs))
        self.drafted.inc(step.drafted)
        self.kept.inc(step.kept)
        blocks = engine.scheduler.blocks
        self.queried.inc(blocks.queried - self.seen_queried)
        self.hit.inc(blocks.hit - self.seen_hit)
        self.left.inc(blocks.left - self.seen_left)
        self.seen_queried, self.seen_hit, self.seen_left = blocks.queried, blocks.hit, blocks.left
        for output in outputs:
            if output.finish_reason is not None:
                self.ended.labels(output.finish_reason).inc()
                self._count_times(output.times)
        self.look(engine)

    def look(self, engine: Engine) -> None:
        """Reads current values that also change between steps."""
        blocks = engine.scheduler.blocks
        self.running.set(len(engine.scheduler.running))
        self.waiting.set(len(engine.scheduler.waiting))
        self.blocks.set(blocks.num_blocks)
        self.blocks_used.set(blocks.used)
        self.bytes_used.set(blocks.used * engine.runner.cache.page_bytes)
        self.usage.set(blocks.used / blocks.num_blocks)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _count_times(self, times: Times) -> None:
        self.queued.observe(times.queue_seconds)
        self.total.observe(times.total_seconds)
        if times.first_token_seconds is not None:
            self.first.observe(times.first_token_seconds)
        for seconds in times.between_tokens_seconds:
            self.between.observe(seconds)

    def _of(self, kind: type, name: str, words: str, labels: Sequence[str] = ()):
        return kind(f"minitrain:{name}", words, labels, registry=self.registry)

    def _seconds(self, name: str) -> Histogram:
        words = name.removesuffix("_seconds").replace("_", " ")
        return Histogram(f"minitrain:{name}", words, buckets=SECONDS, registry=self.registry)


FREE, FINDABLE, HELD, SHARED = ".", "c", "1", "2"  # a block's letter
RECENT = 50  # steps over which the rate is taken


def state_of(engine: Engine) -> dict[str, object]:
    """The state, read on the engine's own thread; "map" has a letter for each block."""
    blocks = engine.scheduler.blocks
    recent = list(engine.steps)[-RECENT:]
    seconds = sum(step.seconds for step in recent)
    return {
        "running": len(engine.scheduler.running),
        "waiting": len(engine.scheduler.waiting),
        "block_size": blocks.block_size,
        "blocks": blocks.num_blocks,
        "used": blocks.used,
        "hit_rate": blocks.hit / max(1, blocks.queried),
        "tokens_per_second": sum(step.sampled for step in recent) / seconds if seconds else 0.0,
        "map": "".join(letter(block.ref_count, block.key is not None) for block in blocks.blocks),
    }


def letter(ref_count: int, findable: bool) -> str:
    if ref_count == 0:
        return FINDABLE if findable else FREE
    return HELD if ref_count == 1 else SHARED
