"""The state that the page and the notebook show, as plain values: heading, alerts, panels."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from minitrain.apps.watch.history import History
from minitrain.apps.watch.panels import panels
from minitrain.monitoring.alerts import Alert
from minitrain.training.report import describe_loss
from minitrain.words import plural

LONGEST_LIST = 20
WAITED = {
    "data": "waited for data",
    "communication": "for other ranks",
    "evaluation": "evaluated",
    "checkpoint": "saved",
}


def state_of(history: History) -> dict[str, Any]:
    """JSON's kinds of values only."""
    return {**heading(history), "panels": [asdict(panel) for panel in panels(history)]}


def heading(history: History) -> dict[str, Any]:
    """The heading's sentence."""
    return {
        "run": history.folder.resolve().name,
        "state": history.state,
        "progress": progress(history),
        "facts": facts(history),
        "alerts": alerts(history),
    }


def progress(history: History) -> float:
    newest = history.newest.get(0, {})
    total = newest.get("total_steps")
    return min(1.0, newest.get("step", 0) / total) if total else 0.0


def facts(history: History) -> list[tuple[str, str]]:
    """The first facts of a run: where it is, how good, how fast."""
    newest = history.newest.get(0, {})
    total = newest.get("total_steps")
    step = f"{newest.get('step', 0):,}" + (f" of {total:,.0f}" if total else "")
    found = [("step", step)]
    if "held_out" in newest:
        found.append(("held out", describe_loss(newest["held_out"], newest.get("floor"))))
    if "tokens" in newest:
        found.append(("tokens", f"{newest['tokens']:,}"))
    if "mfu" in newest:
        found.append(("MFU", f"{newest['mfu']:.0%}"))
    whole = sum(history.totals.values())
    for part in WAITED:
        if history.totals[part]:
            found.append((WAITED[part], f"{history.totals[part] / whole:.1%} of the time"))
    if "seconds" in newest:
        found.append(("trained", f"{newest['seconds']:,.0f} s"))
    if len(history.newest) > 1:
        found.append(("ranks", plural(len(history.newest), "rank")))
    return found


def alerts(history: History) -> list[dict[str, Any]]:
    """Those that fire now, then those that did, the newest first; a rule once for all its ranks."""
    firing = history.alerts.firing
    shown = [_shown(each, True) for each in _by_rule(firing)]
    past = [alert for alert in history.alerts.fired if alert not in firing]
    shown += [_shown(each, False) for each in reversed(_by_rule(past))]
    return shown[:LONGEST_LIST]


def _by_rule(found: list[Alert]) -> list[list[Alert]]:
    together: dict[tuple[str, int], list[Alert]] = {}
    for alert in found:
        together.setdefault((alert.name, int(alert.since // 60)), []).append(alert)
    return list(together.values())


def _shown(found: list[Alert], fires: bool) -> dict[str, Any]:
    first = found[0]
    ranks = sorted({alert.rank for alert in found})
    on = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:8]))}"
    return {
        "name": first.name,
        "severity": first.rule.severity,
        "fires": fires,
        "on": on,
        "since": time.strftime("%H:%M:%S", time.localtime(first.since)),
        "says": first.rule.says,
        "source": first.rule.source,
    }
