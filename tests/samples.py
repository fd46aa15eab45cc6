"""Golden reports of the sample recordings. ``python -m tests.samples`` writes them anew.

Look at the difference before committing it: the new numbers must be truer than the old ones.
"""

from pathlib import Path

from bottleneck.pipeline import analyse
from bottleneck.report import render_report

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "sample_traces"
GOLDEN = ROOT / "tests" / "golden" / "samples"


def recordings() -> list[Path]:
    """The recordings that lie in sample_traces/."""
    return sorted(path.parent for path in SAMPLES.glob("*/recording.json"))


def tell(recording: Path) -> str:
    """The terminal report of a recording; the path in it is the one given."""
    return render_report(analyse([recording]), "terminal")


def main() -> None:
    """Writes every golden report; run it in the root of the repository."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for recording in recordings():
        (GOLDEN / f"{recording.name}.txt").write_text(tell(recording.relative_to(ROOT)), encoding="utf-8")


if __name__ == "__main__":
    main()
