"""The fused example through `bottleneck run`: its class follows the intensity, and flips where the ridge stands."""

from pathlib import Path

import pytest

from bottleneck.calibrate.cpu import build_native
from bottleneck.pipeline import Options, analyse
from bottleneck.schema.analysis import Analysis, KernelSummary
from bottleneck.schema.compiled_kernels import compiled_file, read_compiled
from bottleneck.schema.device import Device

from .driver import record

pytestmark = pytest.mark.compiler

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "pointwise.py"
ELEMENTS = 2**22

# 10 FLOP/B: 80 multiplications of numbers that are read and written once.
DEVICE = Device(
    name="CPU",
    vendor=None,
    kind="cpu",
    count=1,
    peaks_flops_per_s={"fp32_vector": 1e12},
    bandwidth_bytes_per_s=1e11,
    launch_floor_us=0.1,
    source="user",
    ridge_flops_per_byte={"fp32_vector": 10.0},
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if build_native(1) is None:
        pytest.skip("no C++ compiler here")
    return tmp_path_factory.mktemp("inductor")


def run(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, repeat: int) -> Analysis:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings = (f"--set=elements={ELEMENTS}", f"--set=repeat={repeat}", "--set=fused=True", "--steps=2")
    done = record(folder, EXAMPLE.read_text(), *settings)
    assert (done.status, done.stdout, done.stderr) == (0, "", "")
    compiled = read_compiled(done.folder / compiled_file(0))
    assert compiled is not None and compiled.problem is None and len(compiled.kernels) == 1
    return analyse([done.folder], Options(device=DEVICE))


def the_kernel(analysis: Analysis) -> KernelSummary:
    (kernel,) = [kernel for kernel in analysis.kernels if "cpp_fused" in kernel.name]
    return kernel


@pytest.mark.parametrize(("repeat", "bound"), [(60, "memory"), (100, "compute")])
def test_the_class_flips_within_a_quarter_of_the_ridge(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, repeat: int, bound: str
) -> None:
    analysis = run(tmp_path, cache, monkeypatch, repeat)
    kernel = the_kernel(analysis)
    assert kernel.bound == bound
    assert (kernel.flops, kernel.bytes_low, kernel.bytes_high) == (repeat * ELEMENTS, 8 * ELEMENTS, 8 * ELEMENTS)
    assert kernel.calls == 1
    assert kernel.source is not None and kernel.source.startswith("program.py:")
    assert analysis.coverage.modelled_share == pytest.approx(1.0, abs=0.01)
    regions = [other.bound for other in analysis.kernels if "Region" in other.name]
    assert set(regions) == {"dispatch"}
