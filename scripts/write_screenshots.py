"""Writes the pictures of the page that README and docs show, with an installed Chromium.

python -m scripts.write_screenshots [TRACE]      the trace of docs/tutorial/ten-findings.md that is called timesformer

Without a trace only the pictures of sample recordings are written.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from playwright.sync_api import sync_playwright

from scripts.docs_hooks import ROOT, SAMPLES, page_of

TARGET = ROOT / "docs" / "assets"
_PARTS = {"page": "main > section:first-of-type", "timeline": "#timeline", "roofline": "#roofline"}
# The pictures of docs/howto/symptoms.md: name, the command that writes the page, and the part of it.
_SYMPTOMS = (
    ("slow_loader", ["report", SAMPLES / "slow_loader"], "main > section:first-of-type"),
    ("ddp", ["report", SAMPLES / "ddp"], "main > section:first-of-type"),
    (
        "compare",
        ["compare", SAMPLES / "pointwise_fused", SAMPLES / "pointwise"],
        "section:has(h2:text('Where the change comes from'))",
    ),
)


def main() -> None:
    """Draws the parts that README and the how-to pages show."""
    if len(sys.argv) > 1:
        draw(Path(sys.argv[1]), _PARTS)
    for name, command, selector in _SYMPTOMS:
        draw_parts(page_of([str(word) for word in command]), {name: selector})


def draw(trace: Path, parts: Mapping[str, str]) -> None:
    """Writes a picture of each part of a trace's page, by its selector."""
    draw_parts(page_of(["report", str(trace)]), parts)


def draw_parts(html: bytes, parts: Mapping[str, str]) -> None:
    """Writes a picture of each part of a page, by its selector."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_bytes(html)
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--headless=new"])
        view = browser.new_page(viewport={"width": 1120, "height": 1600}, color_scheme="light")
        view.goto(page.as_uri())
        if view.locator("#timeline-view").count():  # of a comparison there is none
            view.wait_for_selector("#timeline-view canvas[aria-label]")
        for name, selector in parts.items():
            view.locator(selector).first.screenshot(path=TARGET / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
