"""The table of rules as Prometheus reads it: `python -m minitrain alerts > alerts.yaml`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from minitrain.monitoring.alerts.rules import RULES, Rule

HEAD = (
    "# Alert rules of minitrain, written by `python -m minitrain alerts`: edit the table instead.\n"
)


def rules_file(rules: Sequence[Rule] = RULES) -> str:
    """YAML; texts in quotes as JSON has them, which YAML reads as they are."""
    lines = [HEAD + "groups:", "  - name: minitrain", "    rules:"]
    for rule in rules:
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {json.dumps(str(rule.when))}",
            f"        for: {rule.lasts}",
            f"        labels: {{severity: {rule.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(rule.says, ensure_ascii=False)}",
            f"          source: {json.dumps(rule.source, ensure_ascii=False)}",
        ]
    return "\n".join(lines) + "\n"
