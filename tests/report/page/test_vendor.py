"""The vendored charting library is the release that its script names."""

from scripts.refresh_vendor import FILES, FOLDER, SHA256, VERSION, digest


def test_vendored_files_are_those_of_the_release() -> None:
    contents = {name: (FOLDER / name).read_bytes() for name in FILES.values()}
    assert digest(contents) == SHA256
    assert VERSION.encode() in contents["uPlot.iife.min.js"][:200]
    contents["uPlot.min.css"] += b" "
    assert digest(contents) != SHA256
