"""The server's page in a real browser: a text completed, a chat, the cache's blocks, both themes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ..minitrain.apps.serve.serving import Running, serving, slowed, small
from .test_jupyterlab import CONTRAST, MIDDLE, brightness


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(small(), num_blocks=64) as one:
        yield one


def send(page, form: str, text: str, tokens: int) -> None:
    page.get_by_label("Form").select_option(form)
    page.get_by_label("Tokens, at most").fill(str(tokens))
    page.get_by_label("Text").fill(text)
    page.get_by_label("Text").press("Enter")


def test_a_text_is_completed_as_its_tokens_come(view, running):
    with slowed(running, 0.02):
        see_a_text_completed(view(running.url))


def see_a_text_completed(page):
    page.get_by_label("Temperature").fill("0")
    send(page, "complete", "Once upon a time", 400)
    page.locator(".token").nth(3).wait_for()
    page.locator('#blocks i[data-is="1"]').nth(2).wait_for()
    assert re.fullmatch(r"[1-9]\d* of 64", page.locator("#used").inner_text())
    assert page.get_by_role("button", name="Send").is_disabled()
    assert not page.get_by_label("API key").is_visible()  # this server asks for none
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("stopped", exact=True).wait_for()
    page.locator("#used", has_text=re.compile("^0 of 64$")).wait_for()
    assert page.locator("#blocks i").count() == 64
    assert page.locator('#blocks i[data-is="c"]').count() >= 2  # of three the last is not full
    assert page.wrong == []


def test_a_chat_remembers_and_refusals_are_shown(view, running):
    page = view(running.url)
    send(page, "chat", "Hello <b>you</b>", 8)
    page.get_by_role("button", name="Stop").and_(page.locator(":disabled")).wait_for()
    log = page.get_by_role("log")
    assert "Hello <b>you</b>" in log.inner_text() and page.locator(".token").count() > 2
    assert page.evaluate("messages.map(m => m.role)") == ["user", "assistant"]
    send(page, "chat", "word " * 600, 8)
    page.locator(".wrong").wait_for()
    assert "shorten one of them" in page.locator(".wrong").inner_text()
    page.get_by_role("button", name="Clear").click()
    assert log.inner_text() == "" and page.evaluate("messages.length") == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_read_in_both_themes_and_on_a_telephone(view, running, theme):
    page = view(running.url, theme)
    page.get_by_role("heading", name="small").wait_for()
    page.get_by_label("Answers").first.fill("2")
    send(page, "complete", "Once upon a time", 24)
    page.get_by_role("button", name="Stop").and_(page.locator(":disabled")).wait_for()
    page.wait_for_timeout(600)  # the last token's colour fades
    assert (brightness(page) > MIDDLE) == (theme == "light")
    assert page.locator("main").evaluate(CONTRAST) >= 4.5
    page.set_viewport_size({"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    unnamed = "[...document.querySelectorAll('input, textarea, select')].filter(f => !f.labels.length).length"
    assert page.evaluate(unnamed) == 0
