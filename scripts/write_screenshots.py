"""Writes the pictures of the page that README and docs show, with an installed Chromium.

python -m scripts.write_screenshots TRACE        the trace of docs/tutorial/ten-findings.md that is called timesformer
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from playwright.sync_api import sync_playwright

from bottleneck.analysis.step_tracks import lay_out
from bottleneck.pipeline import explain
from bottleneck.report.page import to_html

TARGET = Path(__file__).resolve().parents[1] / "docs" / "assets"
_PARTS = {"page": "main > section:first-of-type", "timeline": "#timeline", "roofline": "#roofline"}


def main() -> None:
    """Draws the parts that README and the how-to pages show."""
    draw(Path(sys.argv[1]), _PARTS)


def draw(trace: Path, parts: Mapping[str, str]) -> None:
    """Writes a picture of each part of a trace's page, by its selector."""
    found = explain([trace])
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(to_html(found.analysis, lay_out(found)), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--headless=new"])
        view = browser.new_page(viewport={"width": 1120, "height": 1600}, color_scheme="light")
        view.goto(page.as_uri())
        view.wait_for_selector("#timeline-view canvas[aria-label]")
        for name, selector in parts.items():
            view.locator(selector).first.screenshot(path=TARGET / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
