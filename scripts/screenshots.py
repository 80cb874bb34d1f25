"""Pictures of real output for the README: the demo in a terminal, the page in a browser.

python scripts/screenshots.py docs/images

Needs rich, playwright and chromium. Runs the sample model.
"""

from __future__ import annotations

import argparse
import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import Page, expect, sync_playwright
from rich.console import Console
from rich.text import Text

from phi4mm.cli.options import sample_bundle

COLUMNS, ROWS = 100, 120
PORT = 8399
MEDIA = sample_bundle() / "media"


def typescript(*command: str) -> str:
    """What a command shows on a terminal with 24-bit colours."""
    control, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment.update(COLUMNS=str(COLUMNS), LINES=str(ROWS))
    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.DEVNULL, env=environment):
        os.close(terminal)
        shown = b"".join(_read_all(control))
    os.close(control)
    return shown.decode().replace("\r\n", "\n")


def _read_all(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # Linux says so when the last writer is gone
            return
        if not piece:
            return
        yield piece


def draw_terminal(title: str, shown: str, path: Path) -> None:
    """Save a typescript as a picture."""
    console = Console(width=COLUMNS, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text.from_ansi(shown.strip("\n")))
    console.save_svg(str(path), title=title)


@contextmanager
def server() -> Iterator[str]:
    """A server on the sample, once it answers."""
    command = [sys.executable, "-m", "phi4mm", "serve", "-m", str(sample_bundle())]
    with subprocess.Popen([*command, "--port", str(PORT)], stderr=subprocess.DEVNULL) as process:
        address = f"http://127.0.0.1:{PORT}"
        while True:
            try:
                urlopen(f"{address}/health").close()
                break
            except (URLError, ConnectionError):
                time.sleep(0.2)
        yield address
        process.terminate()


def ask(page: Page, text: str, file: Path) -> None:
    """One turn with a file."""
    page.set_input_files("#files", [str(file)])
    expect(page.locator("#media button")).to_have_count(1)
    page.fill("#text", text)
    page.press("#text", "Enter")
    expect(page.locator("#send")).to_be_visible(timeout=60_000)


def draw_page(path: Path) -> None:
    """A question about a picture, as the browser shows it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with server() as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 760})
        page.goto(address)
        ask(page, "Read the text in the picture.", MEDIA / "picture.png")
        page.screenshot(path=path)
        browser.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    demo = typescript(sys.executable, "-m", "phi4mm", "demo")
    draw_terminal("phi4mm demo", demo, folder / "demo.svg")
    draw_page(folder / "page.png")


if __name__ == "__main__":
    main()
