import gc
import weakref

from bottleneck.harness.script import weakly


class Measurement:
    def __init__(self) -> None:
        self.calls = 0

    def call(self) -> None:
        self.calls += 1


def test_a_callback_reaches_its_object() -> None:
    measurement = Measurement()
    weakly(measurement.call)()
    assert measurement.calls == 1


def test_a_callback_that_is_kept_does_not_keep_its_object() -> None:
    measurement = Measurement()
    kept, alive = weakly(measurement.call), weakref.ref(measurement)
    del measurement
    gc.collect()
    assert alive() is None
    kept()
