"""Memory, time, cost and scaling laws of a training run, estimated before it starts.

    from minitrain.planning import estimate, run_from_row
    estimate(run_from_row({"chip": "H100-SXM-80GB", "layers": "32", "hidden": "4096"})).mfu

run            model, chips and how the work is cut     hardware   what a chip can do
columns        a run from a row of text                 search     the best cut
predict        estimates of the rows of a CSV
step           a step's seconds and bytes               closed_forms   the same on one page
validate       against every published run              finetuning_memory   LoRA, QLoRA
money, failures, scaling
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "make_run": "run",
        "run_from_row": "columns",
        "estimate": "step.step",
        "tuning_memory": "finetuning_memory",
    },
)
