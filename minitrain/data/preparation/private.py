"""Finds and masks PII and secrets: addresses, numbers, keys.

    mask("mail ann@example.org or +49 30 1234567")  ->  "mail <EMAIL> or <PHONE>"

Each kind is a pattern, plus a check where one exists: Luhn's sum for cards (ISO/IEC 7812), mod 97
for accounts (ISO 13616), the standard library for IP addresses, of which only public ones identify
anybody. Patterns match form, not meaning: names, streets and birthdays stay, and so does a number
written without a country code or the usual dashes. The kinds masked are those of Dolma
(Soldaini et al. 2024, 2402.00159, e-mail, phone, IP) and StarCoder (Li et al. 2023, 2305.06161,
keys).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Found:
    """`text[start:stop]` is of this kind."""

    kind: str
    start: int
    stop: int


@dataclass(frozen=True)
class Kind:
    """A pattern, and a check of what it matches.

    `needs`: a text without any of these cannot match; a cheap test to run first.
    """

    name: str
    pattern: re.Pattern[str]
    holds: Callable[[str], bool] = lambda _: True
    needs: tuple[str, ...] = ("",)


def luhn(number: str) -> bool:
    """True if a card number's checksum is right: every second digit from the right
    counts double."""
    digits = [int(character) for character in number if character.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return bool(digits) and (sum(digits[::-1][::2]) + sum(doubled)) % 10 == 0


def iban(account: str) -> bool:
    """True if an IBAN's check digits are right: its first four characters moved to the end, letters
    as 10 to 35, the number is 1 mod 97."""
    plain = account.replace(" ", "")
    number = "".join(str(int(character, 36)) for character in plain[4:] + plain[:4])
    return 15 <= len(plain) <= 34 and int(number) % 97 == 1


def public_address(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def _has_phone_digits(number: str) -> bool:
    return 8 <= sum(map(str.isdigit, number)) <= 15


def _is_random(assigned: str) -> bool:
    """True if it has letters and digits, unlike words and placeholders."""
    value = re.split(r"[:=]\s*[\"']?", assigned, maxsplit=1)[-1]
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value))


GITHUB = ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")

# In order of precedence: later kinds skip text that an earlier kind has matched.
KINDS = (
    Kind(
        "KEY",
        re.compile(
            r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?s:.{0,8000}?)-----END [A-Z ]{0,30}KEY-----"
            r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # AWS
            r"|\bgh[pousr]_[A-Za-z0-9]{36,}"  # GitHub
            r"|\bsk-[A-Za-z0-9_-]{20,}"
            r"|\bAIza[0-9A-Za-z_-]{35}"  # Google
            r"|\bxox[abprs]-[0-9A-Za-z-]{10,}"  # Slack
            r"|\bhf_[A-Za-z0-9]{30,}"
            r"|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"  # JSON web token
        ),
        needs=("-----BEGIN", "AKIA", "ASIA", "AIza", *GITHUB, "sk-", "xox", "hf_", "eyJ"),
    ),
    Kind(
        "KEY",
        re.compile(
            r"(?i)\b(?:api[_-]?key|secret|token|passwo?r?d)[\"']?\s{0,3}[:=]\s{0,3}[\"']?[^\s\"',;]{8,200}"
        ),
        _is_random,
    ),
    Kind(
        "EMAIL",
        re.compile(r"(?<![\w.+%-])\w[\w.+%'-]{0,63}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}\b"),
        needs=("@",),
    ),
    Kind("IBAN", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b"), iban),
    Kind(
        "CARD",
        re.compile(r"(?<![\w.-])(?:[3-6]\d{3}|2[2-7]\d{2})(?:[ -]?\d){9,15}(?![\w-]|\.\d)"),
        luhn,
    ),
    Kind(
        "IP",
        re.compile(r"(?<![\w.:])(?:\d{1,3}\.){3}\d{1,3}(?![\w:]*\.?\d)"),
        public_address,
    ),
    Kind(
        "IP",
        re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{1,4}:{1,2}){2,7}[0-9A-Fa-f]{1,4}(?![\w:])"),
        public_address,
    ),
    Kind(
        "PHONE",
        re.compile(r"(?<![\w+])\+\d(?:[ ./-]{0,2}\(?\d\)?){7,14}(?!\w)"),
        _has_phone_digits,
        needs=("+",),
    ),
    Kind(
        "PHONE",
        re.compile(
            r"(?<![\w.(-])(?:\([2-9]\d{2}\) ?|[2-9]\d{2}([-. ]))\d{3}[-. ]\d{4}(?![\w-]|\.\d)"
        ),
    ),
)


def masked(row: dict[str, Any]) -> dict[str, Any]:
    """A step: the row's text masked, and the count in `masked`."""
    count = 0 if row.get("dropped") else len(find_private(row["text"]))
    return {**row, "text": mask(row["text"]) if count else row["text"], "masked": count}


def find_private(text: str) -> list[Found]:
    """Non-overlapping matches of private data, in text order."""
    found: list[Found] = []
    taken = bytearray(len(text))
    for kind in KINDS:
        if not any(map(text.__contains__, kind.needs)):
            continue
        for match in kind.pattern.finditer(text):
            start, stop = match.span()
            if not any(taken[start:stop]) and kind.holds(match.group()):
                found.append(Found(kind.name, start, stop))
                taken[start:stop] = b"\1" * (stop - start)
    return sorted(found, key=lambda one: one.start)


def mask(text: str) -> str:
    """The text with <EMAIL>, <PHONE>, … in place of each match."""
    parts, done = [], 0
    for one in find_private(text):
        parts += [text[done : one.start], f"<{one.kind}>"]
        done = one.stop
    return "".join((*parts, text[done:]))
