"""Progress on disk: the best is kept, a crash and a broken file lose nothing."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.lab.notebook.progress import Progress, progress_dir
from minitrain.paths import course_root


@given(st.lists(st.floats(0, 10), min_size=1, max_size=6))
@settings(max_examples=20, deadline=None)
def test_the_best_of_any_sequence(tmp_path_factory, scores):
    progress = Progress("e90_sums", tmp_path_factory.mktemp("progress"))
    for points in scores:
        best = progress.score("ring", points, 10)
    assert best == max(scores)


def test_a_check_that_is_worth_less_now_is_not_worth_more_than_it_is(tmp_path: Path):
    progress = Progress("e90_sums", tmp_path)
    progress.score("ring", 6, 6)
    assert progress.score("ring", 0, 4) == 4


@pytest.mark.parametrize("broken", ["", "{", "[1, 2]", '{"lab": "another"}', "\0\0\0"])
def test_a_broken_file_falls_back_on_the_last_good_one(tmp_path: Path, broken: str):
    progress = Progress("e90_sums", tmp_path)
    progress.score("ring", 6, 6)
    progress.score("tree", 3, 3)
    progress.path.write_text(broken)
    assert progress.load().points == {"ring": [6, 6]}
    progress.score("other", 1, 1)
    assert progress.load().points == {"ring": [6, 6], "other": [1, 1]}


def test_a_crash_before_the_replacement_leaves_the_old_file(tmp_path: Path, monkeypatch):
    progress = Progress("e90_sums", tmp_path)
    progress.score("ring", 6, 6)

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        progress.score("tree", 3, 3)
    monkeypatch.undo()
    assert progress.load().points == {"ring": [6, 6]}


def test_two_notebooks_at_once_lose_nothing(tmp_path: Path):
    def work(name: str):
        for i in range(20):
            Progress("e90_sums", tmp_path).score(f"{name}{i}", 1, 1)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert len(Progress("e90_sums", tmp_path).load().points) == 40


def test_a_run_of_the_solutions_books_no_progress(monkeypatch: pytest.MonkeyPatch):
    learners = progress_dir()
    monkeypatch.chdir(course_root() / "solutions")
    assert progress_dir() == learners / "solutions"
    assert learners.parent.name == "progress" and len(learners.name) == 12, "one of a checkout"
    monkeypatch.chdir(course_root() / "labs")
    assert progress_dir() == learners
