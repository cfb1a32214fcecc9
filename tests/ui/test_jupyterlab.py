"""A learner's way in a real browser: the map, a lab, an exercise solved and graded, both themes."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image

from minitrain.paths import course_root

LABS = sorted(path.stem for path in (course_root() / "labs").glob("e*.ipynb"))
READ = [n if i % 5 == 0 else pytest.param(n, marks=pytest.mark.full) for i, n in enumerate(LABS)]
MIDDLE = 128  # between black and white, of 255
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


def code_cell(place, text: str):
    """The first code cell of a page or a panel whose source holds `text`."""
    return place.locator(f'.jp-CodeCell:has(.jp-InputArea:has-text("{text}"))').first


def seen_by(page, theme: str) -> None:
    """The computer goes from day to night, or back, and JupyterLab with it."""
    page.emulate_media(color_scheme=theme)
    body = f"body[data-jp-theme-light='{str(theme == 'light').lower()}']"
    page.wait_for_selector(body, state="attached")
    for _ in range(100):  # while all open tabs are painted anew
        if (brightness(page) > MIDDLE) == (theme == "light"):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"the page stays at {brightness(page)} of 255 in the {theme} theme")


def check_contrast(page, cards, what: str) -> None:
    """Every card is easy to read, by day and by night."""
    for theme in ("light", "dark"):
        seen_by(page, theme)
        worst = min(cards.evaluate_all(f"cards => cards.map({CONTRAST})"))
        assert worst >= 4.5, f"{what} is hard to read in the {theme} theme: {worst:.1f}"


def test_the_map_opens_without_a_question_and_shows_the_points(page):
    assert no_dialog(page), page.locator(".jp-Dialog").inner_text()
    assert page.locator(".jp-toast-message, .Toastify__toast").count() == 0
    assert brightness(page) > MIDDLE, "a light computer has a light page at once"
    run_cell(page, code_cell(page, "overview()"))
    card = page.locator(CARD).first
    card.wait_for()
    assert "Your course" in card.inner_text() and "Next:" in card.inner_text()
    image = page.locator(".jp-OutputArea-output img")
    assert image.count() == 1 and "e01 after e00" in image.get_attribute("alt")
    page.wait_for_function("i => i.complete && i.naturalWidth > 100", arg=image.element_handle())
    card.get_by_role("link").first.click()
    page.wait_for_selector(f".lm-TabBar-tabLabel:has-text('{LABS[0]}')")
    assert no_dialog(page)


def test_an_exercise_is_solved_and_graded(load_alone):
    page = load_alone("small/labs/e90_sums.ipynb", "dark")
    assert no_dialog(page)
    assert brightness(page) < 100, "a dark computer has a dark page at once"
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
        grade.locator(CARD).first.filter(has_text=re.compile(said)).wait_for()
        check_contrast(page, grade.locator(CARD), f"the card '{said}'")


def test_a_slider_is_moved_with_the_arrow_keys(page, open_tab):
    panel = open_tab("small/labs/e90_sums.ipynb")
    run_cell(page, code_cell(panel, "Lab("))
    cell = code_cell(panel, "widgets.explore")
    run_cell(page, cell)
    assert cell.locator("img[alt$='15 at 5.']").count() == 1, "a static picture comes first"
    slider = cell.get_by_role("slider", name="last")
    slider.focus()
    page.keyboard.press("ArrowRight")
    cell.locator("img[alt$='21 at 6.']").wait_for()
    assert cell.locator("img").count() == 1, "the picture is replaced where it stands"


def test_a_lab_opens_with_a_kernel_and_line_numbers(page, open_tab):
    panel = open_tab(f"labs/{LABS[0]}.ipynb")
    assert no_dialog(page)
    panel.locator(".cm-lineNumbers").first.wait_for()
    setup = code_cell(panel, "Lab(")
    run_cell(page, setup)
    line = setup.locator(".jp-OutputArea-output").first.inner_text()
    assert re.search(r"torch 2\.\d+ · .* · 0 of \d+ done", line)


@pytest.mark.parametrize("name", READ)
def test_a_solution_reads_well(page, open_tab, name):
    panel = open_tab(f"solutions/{name}.ipynb")
    panel.locator(CARD).first.wait_for()
    check_contrast(page, panel.locator(CARD), f"a card of {name}")
    images = panel.locator(".jp-OutputArea-output img")
    assert all(images.evaluate_all("images => images.map(image => image.alt)"))
    tab = page.locator(
        f".lm-TabBar-tab[title*='solutions/'] .lm-TabBar-tabLabel:text-is('{name}.ipynb')"
    )
    before = tab.first.evaluate("label => getComputedStyle(label, '::before').content")
    assert before == '"solution · "', "the tab tells it from the learner's own"
