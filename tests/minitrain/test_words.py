"""Numbers in words: the unit fits, also where rounding carries a number into the next one."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from minitrain import paths
from minitrain.errors import InputError, divide
from minitrain.generators import (
    generator_states,
    restore_generators,
    restore_torch,
    seed_generators,
    torch_states,
)
from minitrain.optional import optional, require
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


# --- messages of errors ---


def test_what_divides_is_divided():
    assert divide("experts", 8, 4) == 2 and divide("heads", 3, 1) == 3


@pytest.mark.parametrize(
    "length, parts, words",
    [
        (8, 3, "8 experts cannot be split over 3 ranks: use 6 or 9, or 2 or 4 ranks"),
        (25, 4, "use 24 or 28, or 5 ranks"),
        (1, 2, "use 2$"),
        (3, 4, "use 4, or 3 ranks"),
    ],
)
def test_what_does_not_names_the_nearest_that_do(length, parts, words):
    with pytest.raises(InputError, match=words):
        divide("experts", length, parts)


# --- folders of the user, also of one whose home cannot be written ---


@pytest.mark.parametrize("folder", [paths.cache_dir, paths.state_dir])
def test_who_cannot_write_at_home_writes_in_the_checkout(folder, tmp_path, monkeypatch):
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(paths, "course_root", lambda: tmp_path / "Größe und Übung")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert folder().is_relative_to(tmp_path / "home") and folder().is_dir()
    monkeypatch.setenv("HOME", "/dev/null/nobody")
    assert folder().is_relative_to(paths.stand_in_home()) and folder().is_dir()


# --- a package that is not there costs a sentence that says who needs it and how to get it ---


def test_what_is_there_is_given():
    assert optional("this test", "json").loads("1") == 1
    require("this test", "json", "os.path")


def test_what_is_missing_is_named_with_its_remedy():
    said = r"page needs no_such and nor_this, which is not installed: pip install 'x\[serve\]'$"
    with pytest.raises(InputError, match=said):
        require("the page", "json", "no_such", "nor_this", install="'x[serve]'")
    with pytest.raises(InputError, match=r"pip install no_such, or name other benches$"):
        optional("the bench", "no_such", instead=", or name other benches")


def test_what_is_installed_and_broken_says_why(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import no_such_thing")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"half_there, which is broken \(No module named"):
        optional("this test", "half_there")


# --- messages of errors ---


def draw() -> list[float]:
    """From each of the three, normals too: of these a generator keeps the second one of a pair."""
    pairs = [random.gauss(0, 1), float(np.random.randn()), float(torch.randn(()))]
    return [*pairs, random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_a_seed_decides_what_all_three_draw():
    seed_generators(7)
    first = draw()
    assert draw() != first
    seed_generators(7)
    assert draw() == first
    seed_generators(8)
    assert all(a != b for a, b in zip(draw(), first))


@pytest.mark.parametrize("seed", [0, 2**32, 2**63])
def test_a_seed_may_be_larger_than_numpy_takes(seed):
    seed_generators(seed)
    first = draw()
    seed_generators(seed)
    assert draw() == first


def test_all_go_on_from_where_they_stood():
    draw()
    states = generator_states()
    expected = draw(), draw()
    restore_generators(states)
    assert (draw(), draw()) == expected


def test_torchs_alone_leave_the_others_where_they_are():
    states = torch_states([torch.device("cpu")])
    first = draw()
    restore_torch(states)
    second = draw()
    assert [a == b for a, b in zip(first, second)] == [False, False, True] * 2
