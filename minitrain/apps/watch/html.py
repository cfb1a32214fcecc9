"""The same in HTML text, for the page and for a notebook: one drawing of a run."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Any

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
    told = "".join(alert(each) for each in state["alerts"])
    alerts = f'<ul class="alerts" aria-label="Alerts">{told}</ul>' if told else ""
    return f"{bar}<dl>{facts}</dl>{alerts}"


def alert(each: dict[str, Any]) -> str:
    when = f"since {each['since']}" if each["fires"] else f"at {each['since']}, over"
    return (
        f'<li class="{"fires" if each["fires"] else "over"}"><b>{escape(each["name"])}</b> '
        f"on {escape(each['on'])}, {when}: {escape(each['says'])}"
        f"<small>{escape(each['source'])}</small></li>"
    )


def figure(panel: dict[str, Any]) -> str:
    key = "".join(f"<li>{_sign(hue)}{escape(name)}</li>" for name, hue in panel["key"])
    keys = f'<ul class="key">{key}</ul>' if key else ""
    return (
        f'<figure id="panel-{panel["id"]}"><figcaption><span>{escape(panel["title"])}</span>'
        f"<b>{escape(panel['value'])}</b></figcaption>{panel['picture']}{keys}</figure>"
    )


def _sign(hue: str) -> str:
    return f'<i style="background:var({hue})"></i>' if hue else '<i class="level"></i>'
