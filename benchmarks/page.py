"""Size of the page, time to make it, time until a browser paints it, and frames of its timeline while that is moved.

    python -m benchmarks.page [TRACE ...]        those given, else sample_traces/ and the largest traces in ../shared
    python -m benchmarks.page synthetic          a made trace with 50,000 events in one step, last above too

The paint is the first contentful one of a headless Chromium, from the start of its navigation. A frame is the time
between two callbacks of `requestAnimationFrame`, 16.7 ms at best, while each turns the wheel with Ctrl (zoom) or drags
with Shift (pan).
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
from tests.builders import kernel, launch, op, step, write_trace

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


# Zooms in and out again, or drags to and fro at half of the step, one event a frame; gives the length of each frame.
_FRAMES = """async ([kind, count]) => {
  const canvas = document.querySelector("#timeline-view canvas"), box = canvas.getBoundingClientRect();
  const at = { bubbles: true, cancelable: true, clientX: box.x + box.width * 0.6, clientY: box.y + 60, pointerId: 1 };
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  canvas.setPointerCapture = () => {};
  if (kind === "pan") {
    canvas.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY: -460, ctrlKey: true }));
    canvas.dispatchEvent(new PointerEvent("pointerdown", { ...at, shiftKey: true }));
  }
  await frame();
  let before = await frame();
  const lengths = [];
  for (let turn = 0; turn < count; turn++) {
    const clientX = at.clientX + 300 * Math.sin(turn / 10), deltaY = turn < count / 2 ? -60 : 60;
    if (kind === "zoom") canvas.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY, ctrlKey: true }));
    else canvas.dispatchEvent(new PointerEvent("pointermove", { ...at, clientX }));
    const now = await frame();
    lengths.push(now - before);
    before = now;
  }
  return lengths;
}"""
_FRAMES_EACH = 120


def frames_ms(browser: Any, page: Path, kind: str) -> tuple[float, float]:
    """Median and longest frame while the timeline is zoomed or panned."""
    view = browser.new_page(viewport={"width": 1280, "height": 900})
    view.goto(page.as_uri())
    view.locator("#timeline-view canvas[aria-label]").scroll_into_view_if_needed()
    lengths = view.evaluate(_FRAMES, [kind, _FRAMES_EACH])
    view.close()
    return statistics.median(lengths), max(lengths)


def write_synthetic(folder: Path) -> Path:
    """A trace of one step with 12,500 ops that each launch a kernel on one of two streams, and gaps between these."""
    events: list[dict[str, Any]] = [step(1, 0.0, 125_000.0)]
    for number in range(12_500):
        at_us, name = 10.0 * number, f"aten::op_{number % 40}"
        events += [op(name, at_us, 8.0), launch(number + 1, at_us + 2, 4.0)]
        busy_us = 2.0 + number * 7919 % 60 / 10
        events.append(kernel(number + 1, at_us + 6.5, busy_us, f"kernel_{number % 40}", stream=7 + number % 2))
    return write_trace(folder / "synthetic.json", events)


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
    names = sys.argv[1:] or [*map(str, chosen()), "synthetic"]
    print(f"{'kB':>7} {'make ms':>8} {'paint ms':>8} {'events':>7} {'zoom: median, longest':>22} {'pan':>15}  trace")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--headless=new"]
        )
        for name in names:
            path = write_synthetic(Path(folder)) if name == "synthetic" else Path(name)
            found = explain([path])
            start = time.perf_counter()
            timeline = lay_out(found)
            text = to_html(found.analysis, timeline)
            made_ms = (time.perf_counter() - start) * 1e3
            page = Path(folder) / "page.html"
            page.write_text(text, encoding="utf-8")
            size_kb = page.stat().st_size / 1e3
            moved = [frames_ms(browser, page, kind) for kind in ("zoom", "pan")] if timeline else []
            frames = "  ".join(f"{median:6.1f} {longest:6.1f} ms" for median, longest in moved)
            count = sum(len(tracks.lane) for tracks in timeline.steps) if timeline else 0
            painted = paint_ms(browser, page)
            print(f"{size_kb:7.0f} {made_ms:8.0f} {painted:8.0f} {count:7} {frames:>39}  {path.name[-60:]}", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
