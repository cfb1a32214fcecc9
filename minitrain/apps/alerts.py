"""`python -m minitrain alerts`: the alert rules, as a file that Prometheus reads."""

from __future__ import annotations

from typing import Annotated

from minitrain.apps.kinds import Option, whole


def alerts(
    score: Annotated[
        int | None,
        Option(whole(1, 10_000), "judge the rules on so many planted incidents and healthy hours"),
    ] = None,
) -> None:
    """Print the alert rules for Prometheus: alerts > alerts.yaml."""
    if score is not None:
        from tqdm import tqdm

        from minitrain.monitoring.incidents.score import detect_by
        from minitrain.monitoring.incidents.score import score as judged

        print(judged(detect_by(), tqdm(range(score), unit="trace", leave=False, disable=None)))
        return

    from minitrain.monitoring.alerts.rules_file import rules_file

    print(rules_file(), end="")
