"""A learner's way in a real browser: the map, a lab, an exercise solved and graded, both themes."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image

from minitrain.paths import course_root

pytestmark = pytest.mark.alone

LABS = sorted(path.stem for path in (course_root() / "labs").glob("e*.ipynb"))
CARD = ".jp-OutputArea-output div[style*='border-left']"
CONTRAST = """card => {
    const channels = text => (text.match(/[\\d.]+/g) || []).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = node => {
        const [r, g, b, a = 1] = channels(getComputedStyle(node).backgroundColor);
        if (a === 1 || !node.parentElement) return [r, g, b];
        const below = ground(node.parentElement);
        return [r, g, b].map((v, i) => v * a + below[i] * (1 - a));
    };
    let worst = 21;
    for (const node of [card, ...card.querySelectorAll("*")]) {
        const own = [...node.childNodes].some(c => c.nodeType === 3 && c.textContent.trim());
        if (!own) continue;
        let fade = 1;
        for (let n = node; n !== card.parentElement; n = n.parentElement) fade *= getComputedStyle(n).opacity;
        const back = ground(node), ink = channels(getComputedStyle(node).color);
        const seen = back.map((v, i) => ink[i] * fade + v * (1 - fade));
        const [low, high] = [light(seen), light(back)].sort((a, b) => a - b);
        worst = Math.min(worst, (high + 0.05) / (low + 0.05));
    }
    return worst;
}"""


def brightness(page) -> float:
    """The median grey value of what is seen."""
    return float(np.median(np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"))))


def no_dialog(page) -> bool:
    return page.locator(".jp-Dialog").count() == 0


def run_cell(page, cell) -> None:
    """Runs one cell and waits for its number."""
    dialog = page.locator(".jp-Dialog")
    assert dialog.count() == 0, dialog.first.inner_text()
    cell.locator(".cm-content").click()
    cell.locator(".cm-focused").wait_for()
    page.keyboard.press("Shift+Enter")
    prompt = cell.locator(".jp-InputPrompt").first
    prompt.filter(has_text=re.compile(r"\[\d+\]")).wait_for()


def code_cell(page, text: str):
    """The first code cell whose source holds `text`."""
    return (
        page.locator(".jp-CodeCell").filter(has=page.locator(".jp-InputArea", has_text=text)).first
    )


def test_the_map_opens_without_a_question_and_shows_the_points(open_page):
    page = open_page("labs/index.ipynb")
    assert no_dialog(page), page.locator(".jp-Dialog").inner_text()
    assert page.locator(".jp-toast-message, .Toastify__toast").count() == 0
    run_cell(page, code_cell(page, "overview()"))
    card = page.locator(CARD).first
    card.wait_for()
    assert "Your course" in card.inner_text() and "Next:" in card.inner_text()
    images = page.locator(".jp-MarkdownOutput img")
    assert images.count() == len(LABS)
    for image in images.all():
        image.scroll_into_view_if_needed()
        assert image.get_attribute("alt")
        page.wait_for_function(
            "i => i.complete && i.naturalWidth > 100", arg=image.element_handle()
        )
    card.get_by_role("link").first.click()
    page.wait_for_selector(f".lm-TabBar-tabLabel:has-text('{LABS[0]}')")
    assert no_dialog(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_exercise_is_solved_and_graded(open_page, theme, tmp_path):
    page = open_page("small/labs/e90_sums.ipynb", theme)
    assert no_dialog(page)
    assert (brightness(page) > 200) == (theme == "light")
    run_cell(page, code_cell(page, "Lab("))
    exercise, grade = code_cell(page, "def running_sum"), code_cell(page, "lab.grade(")
    run_cell(page, exercise), run_cell(page, grade)
    assert "Not written yet" in grade.locator(CARD).first.inner_text()
    for body, said in (
        ("values * 1", "is summed|differ"),
        ("torch.cumsum(values, 0)", "6 of 6 points"),
    ):
        exercise.locator(".cm-content").fill(f"def running_sum(values):\n    return {body}\n")
        run_cell(page, exercise), run_cell(page, grade)
        card = grade.locator(CARD).first
        card.filter(has_text=re.compile(said)).wait_for()
        assert card.evaluate(CONTRAST) >= 4.5, f"hard to read in the {theme} theme"
    page.screenshot(path=tmp_path / f"card-{theme}.png")


def test_a_slider_is_moved_with_the_arrow_keys(open_page):
    page = open_page("small/labs/e90_sums.ipynb")
    run_cell(page, code_cell(page, "Lab("))
    cell = code_cell(page, "widgets.explore")
    run_cell(page, cell)
    assert cell.locator("img[alt$='up to 5']").count() == 1, "a static picture comes first"
    slider = cell.locator(".noUi-handle, [role=slider]").first
    slider.focus()
    page.keyboard.press("ArrowRight")
    cell.locator("img[alt$='up to 6']").wait_for()
    assert cell.locator("img").count() == 1, "the picture is replaced where it stands"


@pytest.mark.parametrize("name", [LABS[0], LABS[-1]])
def test_a_lab_opens_with_a_kernel_and_line_numbers(open_page, name):
    page = open_page(f"labs/{name}.ipynb")
    assert no_dialog(page)
    page.locator(".cm-lineNumbers").first.wait_for()
    setup = code_cell(page, "Lab(")
    run_cell(page, setup)
    line = setup.locator(".jp-OutputArea-output").first.inner_text()
    assert re.search(r"torch 2\.\d+ · .* · 0 of \d+ done", line)


@pytest.mark.parametrize("name, theme", [(LABS[0], "light"), *((name, "dark") for name in LABS)])
def test_a_solution_reads_well(open_page, name, theme):
    page = open_page(f"solutions/{name}.ipynb", theme)
    page.locator(CARD).first.wait_for()
    worst = [card.evaluate(CONTRAST) for card in page.locator(CARD).all()]
    assert min(worst) >= 4.5, (
        f"a card of {name} is hard to read in the {theme} theme: {min(worst):.1f}"
    )
    for image in page.locator(".jp-OutputArea-output img").all():
        assert image.get_attribute("alt")
