"""Live monitoring of a run: one stream of samples, read by files, endpoints and people.

train ─▶ Reporter ─▶ sample {"step": 412, "loss": 1.3, …} ─▶ sinks/   JSON lines, TensorBoard,
            ▲                                                          wandb, Prometheus
          meter      parts of the step, bytes, memory, hardware/
metrics.jsonl ─▶ dashboard/    a page at 1 Hz, or the same in a notebook
              └▶ alerts/       rules in PromQL and in Python, from one table
incidents/    seeded traces with hidden labels, which score any set of rules
"""
