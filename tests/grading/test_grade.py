"""The engine: points, messages, what stands in for what is missing, and live functions."""

from __future__ import annotations

import linecache
import random
from pathlib import Path

import pytest
import torch

from minitrain.errors import InputError
from minitrain.lab.failures import CheckFailed, SubmissionFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.attempt import Attempt, Spent
from minitrain.lab.grading.checks import Exercise, Question, check, checks_of
from minitrain.lab.grading.course import load_lab
from minitrain.lab.grading.grade import grade_item, grade_submission
from minitrain.lab.grading.running import drawn_from, run_checks, unpredictable, within
from minitrain.lab.grading.submission import read_submission
from minitrain.lab.sandbox.loader import Cell, Solution
from minitrain.parallel.collectives.algorithms import chunk_sizes as reference_chunk_sizes

AVERAGE = """
def sum_over_ranks(group, x):
    return group.all_reduce(x, op="avg")
"""
BUILDS_ON = """
def sum_over_ranks(group, x):
    assert chunk_sizes(7, 3) == [3, 2, 2], chunk_sizes
    total, part = x.clone(), x
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for _ in range(group.size - 1):
        part = group.exchange(part, right, part.clone(), left)
        total += part
    return total
"""


def by(report, exercise):
    return [result for result in report.checks if result.exercise == exercise]


def statuses(report, exercise):
    return [result.status for result in by(report, exercise)]


def test_a_complete_notebook_has_full_marks(tiny, sandbox, complete):
    report = grade_submission(read_submission(complete()), tiny, sandbox)
    assert (report.score, report.max_score) == (7, 7), report
    assert report.warning is None or "bubblewrap" in report.warning
    scores = {"lab", "score", "max_score"}
    assert set(report.as_dict()) == {"file", *scores, "warning", "doubts", "checks"}
    assert report.file.endswith("t00_tiny.ipynb")


def test_a_mistake_is_told_in_words(grade):
    report = grade(AVERAGE)
    first, second = by(report, "sum_over_ranks")
    assert first.status == "failed" and "that is the average" in first.message
    assert second.message == "no message was sent"
    assert report.score == 2 and statuses(report, "chunk_sizes") == ["passed", "passed"]


def test_behind_a_failed_check_no_cause_is_named(grade):
    greedy = "def chunk_sizes(total, ranks):\n    return [3, 3, 3, 1]"
    first, second = grade(greedy).checks[:2]
    assert first.status == second.status == "failed" and "spread it" not in second.message
    first, second = grade(f"{greedy} if total == 10 else [total // ranks] * ranks").checks[:2]
    assert first.status == "passed" and "spread it over the first ranks" in second.message


def test_what_is_missing_or_a_stub_is_not_attempted(tiny, sandbox, tmp_path):
    path = tmp_path / "t00_tiny.py"
    path.write_text(
        'def chunk_sizes(elements, ranks):\n    """n."""\n    raise NotImplementedError\n'
    )
    report = grade_submission(read_submission(path), tiny, sandbox)
    assert {result.status for result in report.checks} == {"not attempted"}
    assert by(report, "chunk_sizes")[0].message == "not filled in yet"
    assert "there is no `sum_over_ranks`" in by(report, "sum_over_ranks")[0].message


def test_a_stub_that_only_running_shows_is_not_attempted_either(grade):
    half = "def chunk_sizes(elements, ranks):\n    n = 1\n    if n:\n        raise NotImplementedError\n"
    assert statuses(grade(half), "chunk_sizes") == ["not attempted"] * 2
    half = (
        "def sum_over_ranks(group, x):\n    if x.sum() < 1e9:\n        raise NotImplementedError\n"
    )
    assert statuses(grade(half), "sum_over_ranks") == ["not attempted"] * 2


@pytest.mark.parametrize("broken", ["    raise NotImplementedError", "    return [0]"])
def test_the_courses_version_stands_in_for_an_earlier_exercise(grade, broken):
    report = grade(f"def chunk_sizes(elements, ranks):\n{broken}\n", BUILDS_ON)
    assert set(statuses(report, "sum_over_ranks")) == {"passed"}, report
    assert by(report, "chunk_sizes")[1].points == 0


def test_a_cell_that_fails_costs_nothing_else(grade):
    report = grade("def broken(:\n", "import no_such_module\n1 / 0\n")
    assert report.score == 5


def test_a_name_that_a_failed_cell_should_have_bound_is_explained(grade):
    report = grade(
        "from no_such_module import helper\n\ndef chunk_sizes(n, ranks):\n    return helper(n)\n"
    )
    message = by(report, "chunk_sizes")[0].message
    assert (
        "name 'helper' is not defined" in message and "No module named 'no_such_module'" in message
    )


def test_what_another_exercises_cell_does_costs_that_exercise_only(grade):
    patch = "import torch\ntorch.equal = torch.allclose = None\n\n"
    report = grade(patch + "def chunk_sizes(n, ranks):\n    return [n // ranks] * ranks\n")
    assert set(statuses(report, "sum_over_ranks")) == {"passed"}
    assert "tampered with torch.allclose, torch.equal" in by(report, "chunk_sizes")[0].message


def test_only_what_is_used_is_imported(tiny, sandbox, notebook):
    cells = [
        ("import no_such_module\nfrom math import floor, ceil as up", [], []),
        ("import sys\n\ndef share(n, ranks):\n    return floor(n / ranks)", [], []),
        (
            "def chunk_sizes(n, ranks):\n    import sys\n    assert 'no_such_module' not in sys.modules\n"
            "    return [share(n, ranks) + (r < n % ranks) for r in range(ranks)]",
            ["exercise"],
            [],
        ),
    ]
    report = grade_submission(read_submission(notebook("t00_tiny.ipynb", cells)), tiny, sandbox)
    assert report.score == 2, report


def test_demo_cells_do_not_run(tiny, sandbox, notebook):
    honest = (Path(__file__).parent / "fixtures" / "honest.py").read_text()
    demo = "import torch\nSIZE = max(2, 3)\nvalue = open('/no/such/file').read()\nwhile True:\n    pass"
    path = notebook("t00_tiny.ipynb", [(demo, [], []), (honest, ["exercise"], [])])
    assert grade_submission(read_submission(path), tiny, sandbox).score == 5


def test_an_exception_names_the_line(grade):
    report = grade("def chunk_sizes(elements, ranks):\n    sizes = {}\n    return sizes[ranks]\n")
    assert "KeyError" in by(report, "chunk_sizes")[1].message
    assert (
        "(cell 1, line 3, in chunk_sizes: `return sizes[ranks]`)"
        in by(report, "chunk_sizes")[1].message
    )


def test_what_a_check_cannot_read_is_an_error_not_a_crash(sandbox):
    class Careless(Exercise):
        name = "f"

        @check(points=1, title="reads it")
        def test_it(self, submission):
            expect.that(submission.run(lambda f: f()).shape == (2,), "shape")

    solution = Solution((Cell("a", "def f():\n    return None\n", True),))
    (result,) = run_checks(Careless, {"submission": Attempt(sandbox, solution, "f")})
    assert result.status == "error" and "AttributeError" in result.message


def test_a_work_that_nobody_waited_for_is_told_where_a_check_stumbles(sandbox):
    class Impatient(Exercise):
        name = "f"

        @check(points=1, title="waits")
        def test_it(self, submission):
            traces = submission.launch(lambda group, f: f(group), ranks=2).traces
            expect.that(traces[1].ops[0].waited > 0, "never said")

    source = "import torch\n\ndef f(group):\n    group.all_reduce(torch.ones(3), async_op=True)\n"
    solution = Solution((Cell("a", source, True),))
    (result,) = run_checks(Impatient, {"submission": Attempt(sandbox, solution, "f")})
    assert result.status == "failed"
    assert result.message == (
        "a work was never waited for (rank 0, all_reduce of 12 bytes): call `work.wait()`"
    )


def test_an_endless_loop_on_a_rank_gets_no_advice_that_cannot_be_followed(grade):
    report = grade("def sum_over_ranks(group, x):\n    while True:\n        pass\n")
    message = by(report, "sum_over_ranks")[0].message
    assert "has passed; your loop may never end" in message and "timeout=" not in message
    assert "cell 1, line 2: while True:" in message or "cell 1, line 3: pass" in message


def test_only_the_learners_own_frames_are_shown(grade):
    deep = "def sum_over_ranks(group, x):\n    return inner(x)\n\ndef inner(x):\n    return x[9]\n"
    message = by(grade(deep), "sum_over_ranks")[0].message
    assert "cell 1, line 5: return x[9]" in message and "call stack of ranks 0, 1, 2:" in message
    assert ".py" not in message and "checker" not in message


def test_where_only_the_checker_was_at_work_no_line_of_it_is_shown(grade):
    message = by(grade("def sum_over_ranks(group):\n    return 1\n"), "sum_over_ranks")[0].message
    assert "takes 1 positional argument" in message
    assert ".py" not in message and "checker" not in message


def test_a_file_in_cells_shows_the_line_of_each_cell(tiny, sandbox, tmp_path):
    text = (
        '# %% tags=["exercise"]\ndef chunk_sizes(n, ranks):\n    return n[ranks]\n\n'
        '# %% tags=["exercise"]\ndef sum_over_ranks(group, x):\n    return x[9]\n# %%\n'
    )
    (tmp_path / "t00_tiny.py").write_text(text)
    report = grade_submission(read_submission(tmp_path / "t00_tiny.py"), tiny, sandbox)
    assert "line 3, in chunk_sizes: `return n[ranks]`" in by(report, "chunk_sizes")[0].message
    assert "t00_tiny.py, line 7: return x[9]" in by(report, "sum_over_ranks")[0].message


class TestLive:
    """Functions of a notebook's kernel, as `lab.grade(f)` gives them."""

    def graded(self, tiny, sandbox, function, name="chunk_sizes"):
        return grade_item(tiny.find("exercise", name), function, {}, sandbox)

    def test_a_closure_passes(self, tiny, sandbox):
        one = 1

        def chunk_sizes(elements, ranks):
            return [elements // ranks + one * (rank < elements % ranks) for rank in range(ranks)]

        assert [r.status for r in self.graded(tiny, sandbox, chunk_sizes)] == ["passed"] * 2

    def test_it_may_use_what_lab_grade_returned_for_another(self, tiny, sandbox):
        chunk_sizes = reference_chunk_sizes

        def sum_over_ranks(group, x):
            assert sum(chunk_sizes(x.numel(), group.size)) == x.numel()
            right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
            total, part = x.clone(), x
            for _ in range(group.size - 1):
                part = group.exchange(part, right, torch.empty_like(part), left)
                total += part
            return total

        results = self.graded(tiny, sandbox, sum_over_ranks, "sum_over_ranks")
        assert [r.status for r in results] == ["passed"] * 2, results

    def test_the_reference_itself_earns_nothing(self, tiny, sandbox):
        results = self.graded(tiny, sandbox, reference_chunk_sizes)
        assert {r.points for r in results} == {0.0}
        assert "the course's own version" in results[0].message

    def test_a_class_of_a_cell_is_quoted_by_line(self, tiny, sandbox):
        """As a notebook's kernel has it: a source that is on no disk, in `linecache` alone."""
        lines = ["class chunk_sizes:", "    def __init__(self, n, ranks):", "        n[ranks]"]
        file = "/tmp/ipykernel_1/101531833.py"
        linecache.cache[file] = (99, None, [line + "\n" for line in lines], file)
        names = {"__name__": "__main__"}
        exec(compile("\n".join(lines), file, "exec"), names)
        message = self.graded(tiny, sandbox, names["chunk_sizes"])[0].message
        assert "(cell of chunk_sizes, line 3, in __init__: `n[ranks]`)" in message

    def test_what_cannot_be_sent_is_told(self, tiny, sandbox):
        handle = open(__file__)  # noqa: SIM115 (something that no pickle takes)

        def chunk_sizes(elements, ranks):
            return handle

        assert "cannot be sent to the grader" in self.graded(tiny, sandbox, chunk_sizes)[0].message
        handle.close()

    def test_random_numbers_of_the_notebook_go_on_as_they_were(self, tiny, sandbox):
        torch.manual_seed(3), random.seed(3)
        with unpredictable():
            drawn = torch.rand(1), random.random()
        after = torch.rand(1), random.random()
        torch.manual_seed(3), random.seed(3)
        assert (torch.rand(1), random.random()) == after and drawn != after

    def test_a_number_gives_each_check_inputs_of_its_own_and_the_same_ones_again(self):
        def drawn(name: str) -> float:
            with unpredictable(name):
                return torch.rand(1).item()

        assert drawn("a") != drawn("a")
        with drawn_from(3):
            first = drawn("a")
            assert first == drawn("a") != drawn("b")
        with drawn_from(4):
            assert drawn("a") != first
        assert drawn("a") != drawn("a")


class TestRecorded:
    """Experiments and questions, from tables that a learner recorded."""

    def scaling(self, tiny, table):
        (result,) = grade_item(tiny.find("experiment", "scaling"), table, {}, None)
        return result

    def test_data_that_obeys_passes(self, tiny):
        assert self.scaling(tiny, [{"bytes": 1}, {"bytes": 2}]).status == "passed"

    @pytest.mark.parametrize(
        ("table", "words"),
        [
            ([{"bytes": 2}, {"bytes": 1}], "fewer bytes on more ranks"),
            ([{"ranks": 2}], "no column 'bytes': it has ranks"),
            ([], "list of rows"),
            ("rows", "list of rows"),
            ([1, 2], "list of rows"),
            ([{"bytes": None}, {"bytes": 3}], "not what the check can read"),
        ],
    )
    def test_data_that_does_not_is_told(self, tiny, table, words):
        result = self.scaling(tiny, table)
        assert result.points == 0 and words in result.message

    def test_data_that_keeps_a_check_busy_costs_only_its_points(self):
        class Slow(Question):
            name = "slow"

            @check(points=1, title="counts to it")
            def test_it(self, value):
                while value:
                    pass

        with pytest.raises(CheckFailed, match=r"more than 0\.05 s"), within(0.05):
            Slow().test_it(1)
        assert run_checks(Slow, {"value": 0})[0].status == "passed"

    def test_an_answer_is_judged_by_ones_own_table(self, tiny):
        records = {"scaling": [{"ranks": 2, "bytes": 9}, {"ranks": 4, "bytes": 3}]}
        item = tiny.find("question", "most")
        assert grade_item(item, 2, records, None)[0].status == "passed"
        assert grade_item(item, 4, records, None)[0].message == (
            "the result: got 4: too large, by about 2 x"
        )

    def test_what_an_answer_must_be_is_said_only_where_the_check_wants_it(self):
        class Told(Question):
            name = "told"
            tells = True

            @check(points=1, title="two")
            def test_it(self, value):
                expect.equal(value, 2)

        assert run_checks(Told, {"value": 4})[0].message == "the result: got 4, expected 2"

    def test_a_word_may_be_typed_anyhow_and_the_choice_is_named(self):
        class Chosen(Question):
            name = "chosen"

            @check(points=1, title="a word")
            def test_it(self, value):
                expect.among(value, ["latency", "Band width"])
                expect.equal(value, "Band width")

        def told(value):
            return grade_item(Chosen, value, {}, None)[0]

        assert told("  band  WIDTH ").status == "passed"
        assert told("latency").message == "the result: got 'latency'"
        assert "one of 'latency', 'Band width'" in told("memory").message


class TestLimits:
    """An exercise that hangs has little time left, and says so."""

    def test_a_hang_shortens_the_next_run_and_the_exercise_ends(self, tiny, sandbox):
        solution = Solution((Cell("a", "def f():\n    while True:\n        pass\n", True),))
        attempt = Attempt(sandbox, solution, "f")
        with pytest.raises(
            SubmissionFailed, match=r"not finished after 3 s.*line [23], in f: `(while True:|pass)`"
        ):
            attempt.run(lambda f: f())
        assert attempt.has_hung and attempt.spent.hangs == 1 and attempt.spent.seconds >= 3
        attempt.used_seconds = sandbox.limits.exercise_seconds
        with pytest.raises(
            SubmissionFailed, match="not run: the checks before it took all of the 30 s"
        ):
            attempt.run(lambda f: f())

    def test_a_file_that_hangs_does_not_hold_up_a_class(self, sandbox):
        """Its later exercises wait less once three runs have hung, and all share five minutes."""
        spent = Spent()
        first, second = (Attempt(sandbox, Solution(()), name, spent) for name in "fg")
        assert second._seconds(None) == sandbox.limits.seconds
        spent.hangs = 3
        assert second._seconds(None) == sandbox.limits.after_hang
        spent.seconds = 301.0
        with pytest.raises(SubmissionFailed, match="the exercises before it took all of the 300 s"):
            first._seconds(None)

    def test_a_sandbox_that_was_killed_comes_back(self, sandbox):
        attempt = Attempt(sandbox, Solution((Cell("a", "def f():\n    return 3\n", True),)), "f")
        sandbox.stop()
        assert attempt.run(lambda f: f()) == 3


def test_checks_are_found_in_order_with_titles_and_points(tiny):
    assert [item.name for item in tiny.items] == [
        "chunk_sizes",
        "sum_over_ranks",
        "scaling",
        "most",
    ]
    assert [c.points for c in checks_of(tiny.items[1])] == [2, 1]
    assert tiny.items[0].title == "How many elements each rank gets"
    assert (sum(item.max_points for item in tiny.items), tiny.items[1].max_points) == (7, 3)
    assert tiny.sizes["cpu"] == {"ranks": 2}
    assert tiny.hidden == ("minitrain/parallel/collectives/algorithms.py",)


def test_an_unknown_lab_or_exercise_suggests_the_nearest(course, tiny):
    with pytest.raises(InputError, match="did you mean 't00_tiny'"):
        load_lab("t00_tini", course)
    with pytest.raises(InputError, match="did you mean 'chunk_sizes'"):
        tiny.find("exercise", "chunksizes")
