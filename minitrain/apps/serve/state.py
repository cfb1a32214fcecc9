"""The state that the page draws: every block of the cache, and the requests."""

from __future__ import annotations

from minitrain.inference.engine.engine import Engine

FREE, FINDABLE, HELD, SHARED = ".", "c", "1", "2"  # a block's letter
RECENT = 50  # steps over which the rate is taken


def state_of(engine: Engine) -> dict[str, object]:
    """For the engine's own thread. "map" has a letter for each block."""
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
