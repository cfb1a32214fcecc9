"""`python -m minitrain alerts`: the alert rules, as a file that Prometheus reads."""

from __future__ import annotations


def alerts() -> None:
    """Print the alert rules for Prometheus: alerts > alerts.yaml."""
    from minitrain.monitoring.alerts import rules_file

    print(rules_file(), end="")
