"""Calibration: repeated until stable, kept for exactly this machine and torch, read without torch."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.harness import calibrate, native, probes
from bottleneck.harness.calibrate import (
    Calibration,
    as_device,
    calibrate_cpu,
    load_calibration,
    measure_cpu,
    read_calibration,
    working_sets,
    write_calibration,
)
from bottleneck.harness.cpu import CpuFacts, allowance, cpu_facts, torch_version
from bottleneck.harness.probes import Effort, Readings, best_of, descending
from bottleneck.records import Caveat, Device
from tests.architecture.test_imports import modules_after, run_fresh

FACTS = CpuFacts("Some CPU", "Some CPU 1 2 3", "AMD", 2**15, 2**20, 2**25, 2**34)
READINGS = Readings(
    flops_per_s={"fp32": 1e11, "bf16": 3e11, "fp64": 5e10},
    bandwidth_by_bytes=((1e6, 2e11), (3e8, 1e10)),
    tiny_us=1.1,
    profiled_us=0.6,
    fresh_bytes_per_s=1e9,
)


NOISY = (Caveat("noisy-calibration", "other programs were running"),)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def made(**more: object) -> Calibration:
    whole = Calibration(
        device=as_device(FACTS, READINGS),
        identity=cpu_facts().identity,
        torch=torch_version(),
        threads=2,
        is_default=True,
        allowance=allowance(),
        created="2026-01-01T00:00:00+00:00",
        dispatch_us=1.1,
    )
    return replace(whole, **more)


class Script:
    """A clock that the runs themselves move: the next duration of the list per run."""

    def __init__(self, *durations: float) -> None:
        self.now, self.runs = 0.0, 0
        self._durations: Iterator[float] = iter(durations)

    def run(self) -> None:
        self.runs += 1
        self.now += next(self._durations)

    def clock(self) -> float:
        return self.now


class TestBestOf:
    def test_the_first_run_only_warms_up(self) -> None:
        script = Script(0.125, 1.0, 1.0, 1.0)
        assert best_of(script.run, 100.0, Effort(), script.clock).seconds == 1.0

    def test_it_repeats_until_the_two_best_agree(self) -> None:
        script = Script(9.0, 3.0, 2.0, 1.0, 1.5, 1.015625, 7.0)
        reading = best_of(script.run, 100.0, Effort(), script.clock)
        assert (reading.seconds, reading.stable, script.runs) == (1.0, True, 6)

    def test_a_disturbed_run_does_not_spoil_the_result(self) -> None:
        script = Script(1.0, 1.0, 50.0, 1.0)
        reading = best_of(script.run, 100.0, Effort(), script.clock)
        assert (reading.seconds, reading.stable) == (1.0, True)

    def test_what_never_settles_ends_with_the_time_and_is_called_unstable(self) -> None:
        script = Script(*(2.0**-n for n in range(60)))
        reading = best_of(script.run, 0.9, Effort(), script.clock)
        assert not reading.stable and script.runs < 60

    def test_one_run_that_takes_all_the_time_is_enough_but_not_stable(self) -> None:
        script = Script(5.0, 5.0, 5.0)
        reading = best_of(script.run, 1.0, Effort(), script.clock)
        assert (reading.seconds, reading.stable, script.runs) == (5.0, False, 2)


def test_a_larger_working_set_is_never_faster_than_a_smaller_one() -> None:
    assert descending([(1.0, 5.0), (4.0, 7.0), (2.0, 9.0)]) == ((1.0, 9.0), (2.0, 9.0), (4.0, 7.0))


def test_working_sets_fit_the_levels_that_they_stand_for() -> None:
    sizes = working_sets(FACTS, threads=4)
    assert sizes["L2"] <= 4 * FACTS.l2_bytes
    assert sizes["L2"] < sizes["LLC"] < FACTS.last_level_bytes < sizes["2 x LLC"] < sizes["DRAM"]


def test_working_sets_leave_a_small_machine_its_memory() -> None:
    sizes = working_sets(replace(FACTS, memory_bytes=2**30), threads=4)
    assert max(sizes.values()) <= 2**30 / 16


def test_products_and_pointwise_work_have_their_own_ceilings() -> None:
    device = as_device(FACTS, READINGS)
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
    device = as_device(FACTS, replace(READINGS, vector_flops_per_s={"fp32": 6e10}))
    assert (device.peaks_flops_per_s["fp32_vector"], device.ridge_flops_per_byte["fp32_vector"]) == (6e10, 6.0)
    assert device.peaks_flops_per_s["fp64_vector"] == READINGS.flops_per_s["fp64"]  # not measured: an upper bound


def test_without_a_compiler_the_native_loops_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert native.build_native(1) is None
    assert probes._native_rates(1, 2**15, Effort()) == ({}, [])


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
    assert as_device(FACTS, READINGS).fresh_bytes_per_s == 1e9
    assert as_device(FACTS, replace(READINGS, fresh_bytes_per_s=None)).fresh_bytes_per_s is None


def test_new_pages_are_taken_from_memory_that_nobody_wrote_to() -> None:
    torch = pytest.importorskip("torch")
    blocks = probes._untouched(torch, 800)
    first, second = next(blocks), next(blocks)
    assert first.numel() == 100 and second.data_ptr() == first.data_ptr() + 100


def test_readings_that_did_not_settle_give_a_caveat() -> None:
    assert calibrate._caveats(READINGS, busy=0.1) == ()
    (caveat,) = calibrate._caveats(replace(READINGS, unstable=("fp32 product",)), busy=0.1)
    assert caveat.slug == "noisy-calibration" and "fp32 product" in caveat.message


def test_a_busy_machine_gives_a_caveat() -> None:
    (caveat,) = calibrate._caveats(READINGS, busy=1.7)
    assert "1.7 processors" in caveat.message


class TestAgain:
    """Calibrating anew, with the measurement itself replaced by a given result."""

    def again(self, monkeypatch: pytest.MonkeyPatch, before: Calibration, now: Calibration) -> Device:
        write_calibration(before)
        monkeypatch.setattr(calibrate, "measure_cpu", lambda threads, effort: now)
        assert calibrate_cpu() == load_calibration()
        return calibrate_cpu()

    def faster(self, factor: float) -> Device:
        rates = {name: factor * rate for name, rate in READINGS.flops_per_s.items()}
        return as_device(FACTS, replace(READINGS, flops_per_s=rates))

    def test_a_noisy_result_is_only_improved_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slower = as_device(FACTS, replace(READINGS, bandwidth_by_bytes=((1e6, 1e9), (3e8, 2e10)), profiled_us=0.9))
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
        alone = replace(as_device(FACTS, READINGS), name="one thread")
        write_calibration(made())
        write_calibration(made(threads=1, is_default=False, device=alone))
        assert load_calibration(1) == alone
        assert load_calibration(2) == load_calibration() == made().device
        assert load_calibration(3) is None

    def test_a_later_calibration_replaces_the_earlier(self) -> None:
        write_calibration(made())
        later = replace(as_device(FACTS, READINGS), name="later")
        write_calibration(made(device=later))
        assert load_calibration() == later

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "bottleneck/calibration/1"}', "\x00", "[" * 5000])
    def test_a_damaged_file_counts_as_absent(self, text: str) -> None:
        write_calibration(made()).write_text(text)
        assert load_calibration() is None

    def test_a_calibration_with_a_field_too_many_counts_as_absent(self) -> None:
        path = write_calibration(made())
        path.write_text(json.dumps(json.loads(path.read_text()) | {"mood": "good"}))
        assert load_calibration() is None

    def test_reading_does_not_import_torch(self) -> None:
        seen = modules_after("from bottleneck.harness.calibrate import load_calibration; load_calibration()")
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
    hasty = Effort(64, (64,), 0.02, 0.02, 0.02, tiny_calls=100, native_rounds=1000)
    calibration = measure_cpu(1, hasty)
    assert torch.get_num_threads() == usual
    assert {"fp32_tensor", "bf16_tensor", "fp64_tensor", "fp32_vector"} <= calibration.device.peaks_flops_per_s.keys()
    sizes = [size for size, _ in calibration.device.bandwidth_by_bytes]
    assert sizes == sorted(sizes) and len(sizes) == (5 if native.build_native(1) else 4)
    assert 0.01 < (calibration.device.launch_floor_us or 0) < 1000
    assert calibration.device.fresh_bytes_per_s is None or calibration.device.fresh_bytes_per_s > 1e6
    assert calibration.threads == 1


def test_a_calibration_says_nothing_on_stderr() -> None:
    pytest.importorskip("torch")
    code = (
        "from bottleneck.harness.calibrate import measure_cpu\n"
        "from bottleneck.harness.probes import Effort\n"
        "measure_cpu(1, Effort(64, (64,), 0.01, 0.01, 0.01, tiny_calls=50, native_rounds=1000))"
    )
    done = run_fresh(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
