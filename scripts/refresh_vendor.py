"""Copies the charting library of the page out of its released npm package, and checks that it is the release we know.

    python -m scripts.refresh_vendor                   fetch the package by `npm pack` and write the files again
    python -m scripts.refresh_vendor --package FILE    take this .tgz instead

For another release change VERSION, run this, look at the difference, and write the hash that it names into SHA256.
"""

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NAME, VERSION = "uplot", "1.6.32"
SHA256 = "ce19830f2cf63dab211f82f4428f5486d3639d785c2ddcec2de65a6c7c2b69f4"
FOLDER = Path(__file__).resolve().parents[1] / "bottleneck" / "report" / "page" / "vendor"
FILES = {
    "package/dist/uPlot.iife.min.js": "uPlot.iife.min.js",
    "package/dist/uPlot.min.css": "uPlot.min.css",
    "package/LICENSE": "uPlot.LICENSE",
}


def fetch(folder: Path) -> Path:
    """The package as npm packs it, in this folder."""
    command = ["npm", "pack", f"{NAME}@{VERSION}", "--pack-destination", str(folder)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own text, npm of the user
    return folder / f"{NAME}-{VERSION}.tgz"


def read_files(package: Path) -> dict[str, bytes]:
    """The files that the page holds, by their names in our folder."""
    with tarfile.open(package) as archive:
        members = {name: archive.extractfile(inside) for inside, name in FILES.items()}
        return {name: member.read() for name, member in members.items() if member is not None}


def digest(contents: dict[str, bytes]) -> str:
    """The SHA-256 over all files in order."""
    return hashlib.sha256(b"".join(contents[name] for name in FILES.values())).hexdigest()


def main() -> int:
    """Writes the files; 1 where they are not those of the release that SHA256 stands for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, help="a package that is here already")
    package = parser.parse_args().package
    with tempfile.TemporaryDirectory() as folder:
        contents = read_files(package or fetch(Path(folder)))
    for name, content in contents.items():
        (FOLDER / name).write_bytes(content)
    if digest(contents) != SHA256:
        print(f"these files are not those of {NAME} {VERSION}: SHA256 = {digest(contents)!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
