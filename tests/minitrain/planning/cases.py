"""Runs that several tests of the planner share."""

from __future__ import annotations

from dataclasses import replace

from minitrain.planning.run import Model, Plan, Run, make_run

SMALL = Model(layers=8, hidden=1024, heads=16, kv_heads=16, ffn=4096, vocab=32000, gated=False)
LLAMA = Model(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
MIXTURE = Model(
    layers=16, hidden=2048, heads=16, kv_heads=16, ffn=8192, vocab=32000, experts=16,
    experts_per_token=2, moe_ffn=1408, shared_experts=1, dense_layers=1,
)  # fmt: skip

PLANS = {
    "one chip": Plan(),
    "data": Plan(dp=4, micro_batch=2),
    "ZeRO-3": Plan(dp=16, zero=3, recompute="full", software="eager"),
    "tensor": Plan(tp=8, sp=True, dp=2, zero=1),
    "pipeline": Plan(pp=4, dp=2, schedule="1f1b"),
    "interleaved": Plan(pp=4, vpp=2, dp=2, schedule="interleaved"),
    "zero-bubble": Plan(pp=4, dp=2, schedule="zero-bubble"),
    "context": Plan(tp=2, cp=4, dp=2),
    "2022": Plan(tp=4, pp=2, precision="fp16", recompute="selective", software="2022"),
}


def run_with(plan: Plan, model: Model = SMALL, chip: str = "A100-SXM-80GB", batch: int = 64) -> Run:
    return make_run(chip, model, plan, seq=2048, global_batch=batch)


def changed(run: Run, **fields: object) -> Run:
    """The same run with other fields of its plan."""
    return replace(run, plan=replace(run.plan, **fields))
