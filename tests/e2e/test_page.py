"""The page in a real browser: questions with pictures and clips, stop, regenerate, reload."""

import shutil

import pytest
from server_process import ServerProcess

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


@pytest.fixture(scope="module")
def server(tiny_path):
    # its answers go on to the end of the context
    server = ServerProcess("-m", tiny_path, "-np", "2", "-c", "1024")
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def is_fault(line):
    """Whether a line of the console is an error, other than an answer that says 400."""
    return line.type == "error" and "status of 400" not in line.text


@pytest.fixture
def page(browser, server):
    """A page that no test before has seen; every error of it is one of the test."""
    context = browser.new_context()
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if is_fault(line) else None)
    page.goto(server.url)
    yield page
    context.close()
    assert errors == []


def ask(page, text, *files):
    """Send a question and wait for the end of its answer; the answer's parts."""
    if files:
        page.set_input_files("#files", [str(file) for file in files])
        playwright.expect(page.locator("#media button")).to_have_count(len(files))
    page.fill("#text", text)
    page.press("#text", "Enter")
    playwright.expect(page.locator("#send")).to_be_visible(timeout=60_000)
    return page.locator("article").last


def test_a_question_with_a_picture(page, sample_media):
    answer = ask(page, "What is shown?", sample_media / "picture.png")
    playwright.expect(page.locator("article.user img")).to_have_count(1)
    playwright.expect(answer.locator("footer span")).to_contain_text("image tokens")


def test_a_question_with_a_clip(page, sample_media):
    answer = ask(page, "", sample_media / "clip.flac")
    playwright.expect(page.locator("article.user audio")).to_have_count(1)
    playwright.expect(answer.locator("footer span")).to_contain_text("audio tokens")


def test_stop_leaves_what_was_said_and_frees_the_slot(page, server):
    page.fill("#text", "Tell me everything.")
    page.press("#text", "Enter")
    playwright.expect(page.locator("#stop")).to_be_visible()
    playwright.expect(page.locator("article p").last).not_to_be_empty()
    if page.locator("#stop").is_visible():
        page.click("#stop")
        playwright.expect(page.locator("#send")).to_be_visible()
    server.wait_until(lambda: server.n_busy() == 0)


def test_a_conversation_survives_a_reload(page):
    ask(page, "Hello")
    page.click("#new")
    ask(page, "Good bye")
    page.reload()
    playwright.expect(page.locator("#conversations li")).to_have_count(2)
    playwright.expect(page.locator("article.user p")).to_have_text("Good bye")
    page.get_by_role("button", name="Hello", exact=True).click()
    playwright.expect(page.locator("article.user p")).to_have_text("Hello")
    playwright.expect(page.locator("article")).to_have_count(2)


def test_regenerate_replaces_the_answer(page):
    ask(page, "Hello")
    page.get_by_role("button", name="Regenerate").click()
    playwright.expect(page.locator("#send")).to_be_visible(timeout=60_000)
    playwright.expect(page.locator("article")).to_have_count(2)


def test_an_error_is_shown(page):
    answer = ask(page, "word " * 5000)
    playwright.expect(answer.locator("footer .error")).to_contain_text("the context holds 1024")


@pytest.mark.parametrize("size", [(360, 640), (1280, 800)])
def test_nothing_overflows(page, size):
    page.set_viewport_size({"width": size[0], "height": size[1]})
    ask(page, "Hello")
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    playwright.expect(page.locator("#send")).to_be_in_viewport()
