"""Numbers in words: the unit fits, also where rounding carries a number into the next one."""

from __future__ import annotations

import pytest

from minitrain.words import (
    bytes_text,
    count_text,
    memory_text,
    number_text,
    plural,
    score_text,
    seconds_text,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_600, "1 MB"),
        (12e6, "12 MB"),
        (1.234e9, "1.23 GB"),
        (5e18, "5e+03 PB"),
    ],
)
def test_bytes(value, text):
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1 MiB"),
        (3 * 2**40, "3 TiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_memory(value, text):
    assert memory_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (2.5, "2.5 s"),
        (0.0031, "3.1 ms"),
        (4.2e-6, "4.2 µs"),
        (5e-7, "500 ns"),
        (-0.0031, "-3.1 ms"),
    ],
)
def test_seconds(value, text):
    assert seconds_text(value) == text


def test_counts_and_numbers():
    assert [count_text(n) for n in (7, 1_200_000, 8.03e9)] == ["7", "1.2M", "8.03B"]
    assert [number_text(n) for n in (58123.7, -2093.2, 999.99, 1.5e20)] == [
        *("58,120", "-2,093", "1,000", "1.5e+20")
    ]
    assert [number_text(n) for n in (None, 1e6, 0.12345, "x", True)] == [
        *("–", "1,000,000", "0.1235", "x", "True"),
    ]
    assert [plural(n, "row") for n in (1, 2, 1.5)] == ["1 row", "2 rows", "1.5 rows"]
    assert [score_text(2.0, 6), score_text(1, 1)] == ["2 of 6 points", "1 of 1 point"]
