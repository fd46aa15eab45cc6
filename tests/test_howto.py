"""The code of the how-to pages runs as it stands, and leaves what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bottleneck.schema.recording import read_recording

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "record-in-code.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("code", "folder", "steps"), list(zip(BLOCKS, ("first", "second"), (5, 3), strict=True)))
def test_a_block_of_the_page_records_what_it_says(code: str, folder: str, steps: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert f"bottleneck report {folder}\n" in done.stderr
    assert len(read_recording(tmp_path / folder).traces[0].step_marks_ns) == steps + 1
