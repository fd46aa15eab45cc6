"""Size of the page, time to make it, and time until a browser paints it: smallest and largest trace, and a recording.

    python -m benchmarks.page [TRACE ...]        those given, else sample_traces/ and the largest traces in ../shared

The paint is the first contentful one of a headless Chromium, from the start of its navigation.
"""

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from bottleneck.analysis.step_tracks import lay_out
from bottleneck.pipeline import explain
from bottleneck.report.page import to_html

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = ROOT.parent / "shared" / "traces"
_LOADS = 5
_PAINT = """() => new Promise((done) => new PerformanceObserver((list) => {
  const [paint] = list.getEntriesByName("first-contentful-paint");
  if (paint) done(paint.startTime);
}).observe({ type: "paint", buffered: true }))"""


def chosen() -> list[Path]:
    """A small recording, the largest traces by their file, and the one with the largest analysis."""
    traces = sorted(PUBLIC.glob("*.json.gz"), key=lambda path: path.stat().st_size)
    largest = [path for path in traces if "sglang_decode__capture" in path.name or "asdf_False_at_9ab058c" in path.name]
    return [ROOT / "sample_traces" / "mlp", ROOT / "sample_traces" / "transformer", *traces[-2:], *largest]


def paint_ms(browser: Any, page: Path) -> float:
    """Median time of the first contentful paint over several loads."""
    times = []
    for _ in range(_LOADS):
        view = browser.new_page(viewport={"width": 1280, "height": 900})
        view.goto(page.as_uri())
        times.append(view.evaluate(_PAINT))
        view.close()
    return statistics.median(times)


def main() -> None:
    """Prints a row for each trace."""
    paths = [Path(name) for name in sys.argv[1:]] or chosen()
    print(f"{'kB':>7} {'make ms':>8} {'paint ms':>8}  trace")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--headless=new"]
        )
        for path in paths:
            found = explain([path])
            start = time.perf_counter()
            text = to_html(found.analysis, lay_out(found))
            made_ms = (time.perf_counter() - start) * 1e3
            page = Path(folder) / "page.html"
            page.write_text(text, encoding="utf-8")
            size_kb = page.stat().st_size / 1e3
            print(f"{size_kb:7.0f} {made_ms:8.0f} {paint_ms(browser, page):8.0f}  {path.name[-70:]}", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
