"""The state of a run as plain values and as HTML, for the page and for a notebook."""

from __future__ import annotations

import time
from dataclasses import asdict
from html import escape
from importlib.resources import files
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
    """The state, in JSON types only."""
    return {**heading(history), "panels": [asdict(panel) for panel in panels(history)]}


def heading(history: History) -> dict[str, Any]:
    """Values shown in the heading."""
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
    """Facts of a run: its progress, its quality, its speed."""
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
    """Alerts that fire, then past ones, the newest first; each rule once for all ranks."""
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


ROOM = "minitrain.apps.watch"


def theme() -> str:
    return files(ROOM).joinpath("theme.css").read_text("utf-8")


def body(state: dict[str, Any]) -> str:
    """The whole of `state_of(history)`."""
    charts = "".join(figure(each) for each in state["panels"])
    return f'{head(state)}<div class="charts">{charts}</div>'


def parts(heading: dict[str, Any], traces: list[str]) -> dict[str, str]:
    """The page's parts besides the charts, each as HTML."""
    links = [f'<a href="trace/{escape(name)}" download>{escape(name)}</a>' for name in traces]
    words = {name: escape(heading[name]) for name in ("run", "state")}
    return words | {"head": head(heading), "traces": " ".join(links)}


def head(state: dict[str, Any]) -> str:
    """The heading: progress, facts and alerts."""
    facts = "".join(
        f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in state["facts"]
    )
    width = f"{100 * state['progress']:.1f}"
    bar = (
        f'<div class="bar" role="progressbar" aria-label="steps made" aria-valuemin="0" '
        f'aria-valuemax="100" aria-valuenow="{width}"><i style="width:{width}%"></i></div>'
    )
    shown = "".join(alert(each) for each in state["alerts"])
    alerts = f'<ul class="alerts" aria-label="Alerts">{shown}</ul>' if shown else ""
    return f"{bar}<dl>{facts}</dl>{alerts}"


def alert(each: dict[str, Any]) -> str:
    when = f"since {each['since']}" if each["fires"] else f"at {each['since']}, over"
    return (
        f'<li class="{"fires" if each["fires"] else "over"}"><b>{escape(each["name"])}</b> '
        f"on {escape(each['on'])}, {when}: {escape(each['says'])}"
        f"<small>{escape(each['source'])}</small></li>"
    )


def figure(panel: dict[str, Any]) -> str:
    key = "".join(f"<li>{_mark(hue)}{escape(name)}</li>" for name, hue in panel["key"])
    keys = f'<ul class="key">{key}</ul>' if key else ""
    return (
        f'<figure id="panel-{panel["id"]}"><figcaption><span>{escape(panel["title"])}</span>'
        f"<b>{escape(panel['value'])}</b></figcaption>{panel['picture']}{keys}</figure>"
    )


def _mark(hue: str) -> str:
    return f'<i style="background:var({hue})"></i>' if hue else '<i class="level"></i>'
