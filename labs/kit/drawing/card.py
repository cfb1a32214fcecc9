"""A card of a title, lines and a note, rendered as HTML and as text.

    Ring all-reduce                      2 of 4 points        title, right
    ▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬▬──────────────────────          share
    [pass] equals the sum over ranks               2/2        a line with a badge
    [not yet] sends no more than it must           0/2        another ...
      | got 12 bytes, expected 8                              ... with a message
    Until every check passes, the reference stands in.        note

In a title, a line or a note `this` is code, and [this](address) a link.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minitrain.lab.drawing.display import FONT, MUTED, RULE, TONES, Rich, words

APART = (
    '<span style="display:none;"> · </span>'  # visible only where styles are stripped, as on GitHub
)
LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")
ASIDE = "padding-left:74px;"  # for the badge: wrapped lines align with the first
IN_MARGIN = (
    "display:inline-block;min-width:48px;margin-left:-74px;text-align:center;white-space:nowrap;"
)


@dataclass(frozen=True)
class Line:
    """A line of a card, with an optional message, or a bar filled to `share` of its width."""

    text: str
    right: str = ""
    badge: str = ""  # one word on a coloured background, readable without colour
    tone: str = "info"
    message: str = ""
    share: float | None = None

    def html(self) -> str:
        aside = f"{MUTED if self.badge else 'font-weight:600;'}float:right;padding-left:12px;"
        below = _quote(self.message, self.tone) if self.message else _bar(self.share, self.tone)
        return (
            f'<div style="padding:4px 0;{ASIDE + RULE if self.badge else ""}">'
            f'<span style="{aside}">{words(self.right)}</span>{APART if self.right else ""}'
            f"{_badge(self.badge, self.tone)}{_linked(self.text)}{below}</div>"
        )

    def plain(self) -> str:
        text = _unlinked(self.text)
        if not self.badge:
            return f"  {text}: {self.right}"
        message = "".join(f"\n{'':19}{line}" for line in self.message.splitlines())
        return f"  {self.badge:8}{self.right:>7}  {text}{message}"


@dataclass(frozen=True)
class Card:
    """A coloured edge (good, bad, wait or info), and the theme's own colours inside."""

    title: str
    right: str = ""
    tone: str = "info"
    share: float | None = None  # of a bar under the title
    lines: Sequence[Line] = ()
    note: str = ""

    def rich(self, data: dict[str, Any] | None = None, value: str | None = None) -> Rich:
        """The card in both forms; `data` and `value` as in `Rich`."""
        return Rich(self.html(), self.plain(), data, value)

    def html(self) -> str:
        lines = "".join(line.html() for line in self.lines)
        note = f'<div style="margin-top:6px;">{_linked(self.note)}</div>' if self.note else ""
        return (
            f'<div style="{FONT}border-left:4px solid {TONES[self.tone]};border-radius:4px;'
            'background-color:#88888814;padding:10px 16px;margin:6px 0;max-width:780px;">'
            '<div style="font-weight:600;margin-bottom:4px;">'
            f'<span style="{MUTED}float:right;padding-left:16px;">{words(self.right)}</span>'
            f"{APART if self.right else ''}<b>{_linked(self.title)}</b></div>"
            f"{_bar(self.share, self.tone)}{lines}{note}</div>"
        )

    def plain(self) -> str:
        title = f"{self.title}: {self.right}" if self.right else self.title
        note = [f"  {_unlinked(self.note)}"] if self.note else []
        return "\n".join([title, *(line.plain() for line in self.lines), *note])


def _badge(word: str, tone: str) -> str:
    style = "color:#ffffff;border-radius:3px;padding:1px 8px;font-size:12px;font-weight:600;"
    ground = f"background-color:{TONES[tone]};{IN_MARGIN}"
    return f'<b style="{ground}{style}">{words(word)}</b>&nbsp; ' if word else ""


def _quote(message: str, tone: str) -> str:
    style = f"white-space:pre-wrap;border-left:2px solid {TONES[tone]};"
    return f'<div style="{style}margin:2px 0 6px -66px;padding:0 10px;">{words(message)}</div>'


def _bar(share: float | None, tone: str) -> str:
    if share is None:
        return ""
    percent, round_ = round(100 * min(max(share, 0.0), 1.0)), "border-radius:3px;height:6px;"
    filled = f'<div style="background-color:{TONES[tone]};{round_}width:{percent}%;"></div>'
    return f'<div style="background-color:#88888833;{round_}margin:4px 0;">{filled}</div>'


def _linked(text: str) -> str:
    return LINK.sub(r'<a href="\2">\1</a>', words(text))


def _unlinked(text: str) -> str:
    return LINK.sub(r"\1 (\2)", text)
