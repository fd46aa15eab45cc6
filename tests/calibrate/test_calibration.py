"""Calibration: repeated until stable, kept for exactly this machine and torch, read without torch."""

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.calibrate import cpu as cpu_calibration
from bottleneck.calibrate import cpu as native
from bottleneck.calibrate.cache import (
    calibration_file,
    keep,
    load_calibration,
    read_calibration,
    to_plain,
    write_calibration,
)
from bottleneck.calibrate.calibration import Calibration, Ceiling, Group, Unit, best_of_both, noise_caveats
from bottleneck.calibrate.cpu import (
    CpuBench,
    CpuSizes,
    _fresh,
    as_device,
    calibrate_cpu,
    compiled_probes,
    cpu_probes,
    load_note,
    measure_cpu,
    untouched,
    working_sets,
)
from bottleneck.calibrate.probes import (
    ClockStamp,
    ClockWatch,
    OtherLoad,
    ProbeEffort,
    ProbeResults,
    clock_stamp,
    no_progress,
    settle,
)
from bottleneck.harness.machine import CpuFacts, allowance, cpu_facts, torch_version
from bottleneck.schema.analysis import Caveat
from bottleneck.schema.device import Device
from tests.architecture.test_imports import modules_after, run_fresh

FACTS = CpuFacts("Some CPU", "Some CPU 1 2 3", "AMD", 2**15, 2**20, 2**25, 2**34)
HASTY = ProbeEffort(0.01, most_rounds=2)
SMALL = CpuSizes(products=(64,), scout=64, tiny_calls=100, profiled_calls=50, native_rounds=1000, compiles=False)
FIXED = ClockStamp()


def ceiling(name: str, group: Group, value: float, unit: Unit, **more: object) -> Ceiling:
    return replace(Ceiling(name, group, value, unit, "a way", 0.01, stable=True), **more)


CEILINGS = (
    ceiling("fp32 product", "matrix", 1e11, "FLOP/s", clock_mhz=3000.0),
    ceiling("bf16 product", "matrix", 3e11, "FLOP/s", clock_mhz=2800.0),
    ceiling("fp64 product", "matrix", 5e10, "FLOP/s", clock_mhz=3000.0),
    ceiling("L2 stream", "memory", 2e11, "B/s", working_set_bytes=1e6),
    ceiling("DRAM stream", "memory", 1e10, "B/s", working_set_bytes=3e8),
    ceiling("new pages", "memory", 1e9, "B/s"),
    ceiling("op dispatch", "time", 1.1, "us"),
    ceiling("op, profiled", "time", 0.6, "us"),
)


def with_value(name: str, value: float) -> tuple[Ceiling, ...]:
    """The ceilings with another value for one of them; all of a unit where its name is that of the unit."""
    return tuple(replace(each, value=value) if name == each.name else each for each in CEILINGS)


def times(factor: float) -> tuple[Ceiling, ...]:
    return tuple(replace(each, value=each.value * factor) if each.group == "matrix" else each for each in CEILINGS)


NOISY = (Caveat("noisy-calibration", "other programs were running"),)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def made(**more: object) -> Calibration:
    whole = Calibration(
        device=as_device(FACTS, CEILINGS, FIXED),
        identity=cpu_facts().identity,
        torch=torch_version(),
        threads=2,
        is_default=True,
        allowance=allowance(),
        created="2026-01-01T00:00:00+00:00",
        dispatch_us=1.1,
        ceilings=CEILINGS,
    )
    return replace(whole, **more)


def test_working_sets_fit_the_levels_that_they_stand_for() -> None:
    sizes = working_sets(FACTS, threads=4)
    assert sizes["L2"] <= 4 * FACTS.l2_bytes
    assert sizes["L2"] < sizes["LLC"] < FACTS.last_level_bytes < sizes["2 x LLC"] < sizes["DRAM"]


def test_working_sets_leave_a_small_machine_its_memory() -> None:
    sizes = working_sets(replace(FACTS, memory_bytes=2**30), threads=4)
    assert max(sizes.values()) <= 2**30 / 16


def test_products_and_pointwise_work_have_their_own_ceilings() -> None:
    device = as_device(FACTS, CEILINGS, FIXED)
    assert device.peaks_flops_per_s == {
        "fp32_tensor": 1e11,
        "bf16_tensor": 3e11,
        "fp64_tensor": 5e10,
        "fp32_vector": 1e11,
        "fp64_vector": 5e10,
    }
    assert (device.kind, device.source, device.bandwidth_bytes_per_s) == ("cpu", "measured", 1e10)
    assert device.launch_floor_us == 0.6  # as the profiler shows it, not as a stopwatch would
    assert device.ridge_flops_per_byte["fp32_tensor"] == 10.0


def test_pointwise_work_is_held_against_multiplications_that_are_not_fused() -> None:
    device = as_device(FACTS, (*CEILINGS, ceiling("fp32 multiply", "vector", 6e10, "FLOP/s")), FIXED)
    assert (device.peaks_flops_per_s["fp32_vector"], device.ridge_flops_per_byte["fp32_vector"]) == (6e10, 6.0)
    assert device.peaks_flops_per_s["fp64_vector"] == 5e10  # not measured: an upper bound


def test_without_a_compiler_the_native_loops_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert native.build_native(1) is None
    torch = pytest.importorskip("torch")
    found = {probe.ceiling for probe in cpu_probes(CpuBench(torch, None, SMALL), {"L1": 2**14, "L2": 4096}, HASTY)}
    assert "fp32 product" in found and "L2 stream" in found
    assert not found & {"fp32 multiply", "L1 stream"}


def test_a_compiler_that_fails_leaves_the_native_loops_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert native.build_native(1) is None


class TestNative:
    @pytest.fixture
    def loops(self) -> Iterator[native.Native]:
        built = native.build_native(2)
        if built is None:
            pytest.skip("no C compiler here")
        yield built
        built.close()

    @pytest.mark.parametrize("name", ["fp32", "fp64"])
    def test_a_loop_tells_the_flops_of_all_its_threads(self, loops: native.Native, name: str) -> None:
        found = loops.multiplications(name, rounds=10)
        assert [loop.amount for loop in found] == [2 * 10 * flight for flight in native._FLIGHTS[name]]
        for loop in found:
            loop.run()

    def test_the_triad_tells_the_bytes_of_all_its_threads(self, loops: native.Native) -> None:
        loop = loops.triad(1200, rounds=3)
        loop.run()
        assert loop.amount == 2 * 3 * 1200


def test_the_device_tells_at_which_rate_new_pages_come() -> None:
    assert as_device(FACTS, CEILINGS, FIXED).fresh_bytes_per_s == 1e9
    assert as_device(FACTS, CEILINGS, FIXED).compiled_call_us is None
    entering = (("compiled call", 26.0), ("compiled call, backward", 300.0))
    entered = (*CEILINGS, *(ceiling(name, "time", us, "us") for name, us in entering))
    device = as_device(FACTS, entered, FIXED)
    assert (device.compiled_call_us, device.compiled_call_backward_us) == (26.0, 300.0)
    restless = tuple(replace(each, stable=False) for each in entered)
    assert as_device(FACTS, restless, FIXED).compiled_call_us is None
    without = tuple(each for each in CEILINGS if each.name != "new pages")
    assert as_device(FACTS, without, FIXED).fresh_bytes_per_s is None


class TestNewPages:
    """Each write takes as long as the clock is set to: the first of a block, then the second to fourth."""

    def outcome(self, *write_seconds: float) -> ProbeResults:
        torch = pytest.importorskip("torch")
        ends = itertools.accumulate(itertools.cycle(write_seconds))
        ticks = itertools.chain.from_iterable(itertools.pairwise(ends))
        bench = CpuBench(torch, None, SMALL, clock=lambda: next(ticks))
        probe = _fresh(bench, 800)
        assert probe.amount == 100
        return settle([probe], HASTY, ClockWatch(lambda: None))

    def test_they_cost_what_a_first_write_takes_longer_than_the_quickest_other(self) -> None:
        assert self.outcome(3.0, 5.0, 2.0, 1.0).measured["new pages"].rate == pytest.approx(100 / 4)

    def test_where_a_first_write_takes_no_longer_they_are_unknown_with_the_reason(self) -> None:
        outcome = self.outcome(1.0, 1.0, 1.0, 1.0)
        assert "new pages" not in outcome.measured
        assert "no longer" in outcome.missing["new pages"]


def test_new_pages_are_taken_from_memory_that_nobody_wrote_to() -> None:
    torch = pytest.importorskip("torch")
    blocks = untouched(torch, 800)
    first, second = next(blocks), next(blocks)
    assert first.numel() == 100 and second.data_ptr() == first.data_ptr() + 100


def test_readings_that_did_not_settle_give_a_caveat() -> None:
    assert noise_caveats(CEILINGS, "this CPU", load_note(0.1), "") == ()
    restless = (replace(CEILINGS[0], stable=False), *CEILINGS[1:])
    (caveat,) = noise_caveats(restless, "this CPU", load_note(0.1), "")
    assert caveat.slug == "noisy-calibration" and "1 of 8 did not settle within 3 % (fp32 product)" in caveat.message


def test_a_busy_machine_gives_a_caveat() -> None:
    (caveat,) = noise_caveats(CEILINGS, "this CPU", load_note(1.7), "--device cpu --threads 1")
    assert "1.7 processors" in caveat.message
    assert caveat.message.endswith("bottleneck calibrate --device cpu --threads 1")


def test_our_own_work_is_no_company(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([(10.0, 100.0, 40.0), (20.0, 115.0, 50.0)])
    monkeypatch.setattr(OtherLoad, "_now", lambda self: next(seconds))
    assert OtherLoad().busy_processors() == pytest.approx(0.5)  # 15 s of processors in 10 s, 10 s of them ours


class TestClock:
    def test_a_figure_that_never_moves_is_no_sensor(self) -> None:
        assert not clock_stamp(2445.4, (2445.4, 2445.4), 2445.4, None).is_sensed
        assert not clock_stamp(None, (), None, None).is_sensed

    def test_a_clock_that_moves_is_stamped_with_its_median_while_measuring(self) -> None:
        assert clock_stamp(800.0, (2900.0, 3100.0, 3000.0), 1200.0, 5.0) == ClockStamp(800.0, 3000.0, 1200.0, True, 5.0)

    def test_peaks_know_their_clock_only_where_it_is_sensed(self) -> None:
        assert as_device(FACTS, CEILINGS, FIXED).peak_clocks_mhz == {}
        clocks = as_device(FACTS, CEILINGS, ClockStamp(is_sensed=True)).peak_clocks_mhz
        assert (clocks["bf16_tensor"], clocks["fp32_vector"]) == (2800.0, 3000.0)


class TestAgain:
    """Calibrating anew, with the measurement itself replaced by a given result."""

    def again(
        self, monkeypatch: pytest.MonkeyPatch, before: Calibration, now: Calibration, *, fresh: bool = False
    ) -> Device:
        write_calibration(before)
        monkeypatch.setattr(cpu_calibration, "measure_cpu", lambda threads, effort, on_progress: now)
        assert calibrate_cpu(fresh=fresh).device == load_calibration()
        return calibrate_cpu(fresh=fresh).device

    def faster(self, factor: float) -> Device:
        return as_device(FACTS, times(factor), FIXED)

    def test_a_noisy_result_is_only_improved_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slower = as_device(
            FACTS,
            tuple(
                replace(
                    each, value={"L2 stream": 1e9, "DRAM stream": 2e10, "op, profiled": 0.9}.get(each.name, each.value)
                )
                for each in CEILINGS
            ),
            FIXED,
        )
        device = self.again(monkeypatch, made(caveats=NOISY), made(device=slower, caveats=NOISY))
        assert device.bandwidth_by_bytes == ((1e6, 2e11), (3e8, 2e10))
        assert device.ridge_flops_per_byte["fp32_tensor"] == 5.0
        assert device.launch_floor_us == 0.6

    def test_a_quiet_result_is_replaced_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = self.again(monkeypatch, made(device=self.faster(2.0)), made(device=self.faster(1.0)))
        assert device.peaks_flops_per_s["fp32_tensor"] == 1e11

    def test_a_noisy_result_yields_to_a_faster_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = self.again(monkeypatch, made(caveats=NOISY), made(device=self.faster(2.0)))
        assert device.peaks_flops_per_s["fp32_tensor"] == 2e11

    def test_a_noisy_result_does_not_spoil_a_quiet_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = self.again(monkeypatch, made(), made(device=self.faster(0.5), ceilings=times(0.5), caveats=NOISY))
        assert device.peaks_flops_per_s["fp32_tensor"] == 1e11
        known = read_calibration()
        assert known is not None and known.caveats == () and known.ceilings[0].value == 1e11

    def test_a_fresh_result_counts_whatever_was_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        noisy = made(device=self.faster(0.5), caveats=NOISY)
        device = self.again(monkeypatch, made(caveats=NOISY), noisy, fresh=True)
        assert device.peaks_flops_per_s["fp32_tensor"] == 5e10

    def test_two_that_agree_have_settled(self) -> None:
        restless = tuple(replace(each, stable=False, spread=0.2) for each in CEILINGS)
        near = tuple(replace(each, value=each.value * 1.01) for each in restless)
        both = best_of_both(made(ceilings=restless, caveats=NOISY), made(ceilings=near, caveats=NOISY))
        assert all(each.stable and each.spread == pytest.approx(0.01) for each in both.ceilings)
        assert both.ceilings[0].value == near[0].value and both.ceilings[-1].value == restless[-1].value  # less time

    def test_each_peak_keeps_the_clock_at_which_it_was_reached(self) -> None:
        cold = as_device(FACTS, times(2.0), ClockStamp(is_sensed=True))
        warm = as_device(FACTS, tuple(replace(each, clock_mhz=1000.0) for each in CEILINGS), ClockStamp(is_sensed=True))
        both = best_of_both(made(device=cold, caveats=NOISY), made(device=warm, caveats=NOISY)).device
        assert both.peak_clocks_mhz == cold.peak_clocks_mhz
        again = best_of_both(made(device=warm, caveats=NOISY), made(device=cold, caveats=NOISY)).device
        assert again.peak_clocks_mhz == cold.peak_clocks_mhz

    def test_two_that_differ_have_not(self) -> None:
        restless = tuple(replace(each, stable=False, spread=0.2) for each in CEILINGS)
        far = tuple(replace(each, value=each.value * 1.1) for each in restless)
        both = best_of_both(made(ceilings=restless, caveats=NOISY), made(ceilings=far, caveats=NOISY))
        assert not any(each.stable for each in both.ceilings)


class TestKept:
    def test_what_was_written_is_read_again(self) -> None:
        calibration = made(caveats=NOISY)
        write_calibration(calibration)
        assert read_calibration() == calibration
        assert load_calibration() == calibration.device

    def test_nothing_written_is_nothing_read(self) -> None:
        assert load_calibration() is None

    @pytest.mark.parametrize("other", [{"torch": "1.0"}, {"identity": "another CPU"}, {"allowance": "64 processors"}])
    def test_another_machine_or_torch_does_not_count(self, other: dict[str, str]) -> None:
        write_calibration(made(**other))
        assert load_calibration() is None

    def test_each_number_of_threads_has_its_own(self) -> None:
        alone = replace(as_device(FACTS, CEILINGS, FIXED), name="one thread")
        write_calibration(made())
        write_calibration(made(threads=1, is_default=False, device=alone))
        assert load_calibration(1) == alone
        assert load_calibration(2) == load_calibration() == made().device
        assert load_calibration(3) is None

    def test_a_later_calibration_replaces_the_earlier(self) -> None:
        write_calibration(made())
        later = replace(as_device(FACTS, CEILINGS, FIXED), name="later")
        write_calibration(made(device=later))
        assert load_calibration() == later

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "bottleneck/calibration/3"}', "\x00", "[" * 5000])
    def test_a_damaged_file_counts_as_absent(self, text: str) -> None:
        write_calibration(made()).write_text(text)
        assert load_calibration() is None

    def test_a_cache_that_takes_no_file_is_a_caveat(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        (caveat,) = keep(None, made()).caveats
        assert caveat.slug == "calibration-not-kept" and str(tmp_path) in caveat.message
        assert load_calibration() is None

    def test_a_calibration_with_a_field_too_many_counts_as_absent(self) -> None:
        path = write_calibration(made())
        path.write_text(json.dumps(json.loads(path.read_text()) | {"mood": "good"}))
        assert load_calibration() is None

    def test_the_file_is_named_without_what_it_is_kept_for(self) -> None:
        path = calibration_file(made())
        assert path.name.startswith("cpu-") and "EPYC" not in path.name
        assert path != calibration_file(made(threads=1)) != calibration_file(made(torch="1.0"))

    def test_as_text_it_has_a_version_and_every_ceiling(self) -> None:
        plain = json.loads(json.dumps(to_plain(made())))
        assert plain["format"] == "bottleneck/calibration/5"
        assert [each["name"] for each in plain["ceilings"]] == [each.name for each in CEILINGS]

    def test_reading_does_not_import_torch(self) -> None:
        seen = modules_after("from bottleneck.calibrate.cache import load_calibration; load_calibration()")
        assert "csv" in seen and "torch" not in seen


class TestFacts:
    def test_model_and_caches_come_from_the_system(self, tmp_path: Path) -> None:
        cpuinfo = tmp_path / "cpuinfo"
        cpuinfo.write_text("vendor_id\t: GenuineIntel\nmodel name\t: Some Xeon\nmodel\t: 143\n\nmodel name\t: second\n")
        for index, (level, kind, size) in enumerate(
            [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M"), ("3", "Unified", "260M")]
        ):
            folder = tmp_path / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("type", kind), ("size", size)):
                (folder / name).write_text(text + "\n")
        facts = cpu_facts(cpuinfo, tmp_path / "cache")
        assert (facts.model, facts.vendor) == ("Some Xeon", "Intel")
        assert (facts.l1_bytes, facts.l2_bytes, facts.last_level_bytes) == (48 * 2**10, 2 * 2**20, 260 * 2**20)
        assert facts.identity == "Some Xeon GenuineIntel 143"

    def test_a_system_that_tells_nothing_gets_usual_caches(self, tmp_path: Path) -> None:
        facts = cpu_facts(tmp_path / "absent", tmp_path / "absent")
        assert facts.model and facts.l1_bytes < facts.l2_bytes < facts.last_level_bytes

    def test_settings_that_limit_threads_are_part_of_the_allowance(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        before = allowance()
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert allowance() != before


def test_a_hasty_calibration_measures_every_ceiling_and_puts_the_threads_back() -> None:
    torch = pytest.importorskip("torch")
    usual = torch.get_num_threads()
    calibration = measure_cpu(1, HASTY, no_progress, SMALL)
    assert torch.get_num_threads() == usual
    assert {"fp32_tensor", "bf16_tensor", "fp64_tensor", "fp32_vector"} <= calibration.device.peaks_flops_per_s.keys()
    sizes = [size for size, _ in calibration.device.bandwidth_by_bytes]
    assert sizes == sorted(sizes) and len(sizes) == (5 if native.build_native(1) else 4)
    assert sizes[-1] == working_sets(cpu_facts(), 1)["DRAM"]
    assert 0.01 < (calibration.device.launch_floor_us or 0) < 1000
    assert calibration.device.fresh_bytes_per_s is None or calibration.device.fresh_bytes_per_s > 1e6
    assert calibration.threads == 1 and calibration.missing == {}
    assert all(each.value > 0 for each in calibration.ceilings)


def test_a_dtype_that_would_take_too_long_is_measured_small() -> None:
    torch = pytest.importorskip("torch")
    slow = replace(SMALL, products=(64, 4096), product_seconds=0.0)
    ways = [probe.how for probe in cpu_probes(CpuBench(torch, None, slow), {"L2": 4096}, HASTY)]
    assert "64 x 64" in ways and "4096 x 4096" not in ways


def test_data_are_random_numbers_and_never_zeros() -> None:
    torch = pytest.importorskip("torch")
    built = native.build_native(1)
    if built is None:
        pytest.skip("no C compiler here")
    numbers = native._random_floats(5000)
    assert len(numbers) == 5000 and 0.5 <= min(numbers) < max(numbers) <= 1.0 and len(set(numbers)) > 1000
    seen: list[object] = []

    class Spy:
        def __getattr__(self, name: str) -> object:
            seen.append(name)
            return getattr(torch, name)

    probes = cpu_probes(CpuBench(Spy(), built, SMALL), {"L1": 2**14, "L2": 4096}, HASTY)
    settle(probes, HASTY, ClockWatch(lambda: None))
    built.close()
    assert {"randn", "rand"} <= set(seen) and "zeros" not in seen


def test_a_calibration_says_nothing_on_stderr() -> None:
    pytest.importorskip("torch")
    code = (
        "from bottleneck.calibrate.probes import no_progress\n"
        "from bottleneck.calibrate.cpu import measure_cpu\n"
        "from bottleneck.calibrate.probes import ProbeEffort\n"
        "from bottleneck.calibrate.cpu import CpuSizes\n"
        "small = CpuSizes((64,), 64, tiny_calls=50, profiled_calls=50, native_rounds=1000, compiles=False)\n"
        "measure_cpu(1, ProbeEffort(0.01, most_rounds=1), no_progress, small)"
    )
    done = run_fresh(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_entering_compiled_code_takes_longer_than_calling_an_op() -> None:
    torch = pytest.importorskip("torch")
    # Processor time: what other programs take meanwhile does not count.
    bench = CpuBench(torch, None, replace(SMALL, compiles=True), clock=time.process_time)
    effort = ProbeEffort(0.05, most_rounds=1)
    names = ("op dispatch", "compiled call", "compiled call, backward")
    with torch.inference_mode():
        probes = [*cpu_probes(bench, {"L2": 1 << 20}, effort), *compiled_probes(bench)]
        outcome = settle([each for each in probes if each.ceiling in names], effort, ClockWatch(lambda: None))
    assert not outcome.missing
    dispatch_s, forward_s, both_s = (1 / outcome.measured[name].rate for name in names)
    assert both_s > forward_s > 3 * dispatch_s
