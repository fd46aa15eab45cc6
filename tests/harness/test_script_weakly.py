import gc
import weakref

from bottleneck.harness.script import weakly


class Measurement:
    def __init__(self) -> None:
        self.calls = 0
        self.told = list[str]()

    def call(self) -> None:
        self.calls += 1

    def fail(self) -> None:
        raise OSError("gone")

    def tell(self, when: str, exc: Exception) -> None:
        self.told.append(f"{when}: {exc}")


def test_a_callback_reaches_its_object() -> None:
    measurement = Measurement()
    weakly(measurement.tell, measurement.call)()
    assert measurement.calls == 1


def test_a_callback_that_is_kept_does_not_keep_its_object() -> None:
    measurement = Measurement()
    kept, alive = weakly(measurement.tell, measurement.call), weakref.ref(measurement)
    del measurement
    gc.collect()
    assert alive() is None
    kept()


def test_what_a_callback_raises_is_told_and_goes_no_further() -> None:
    measurement = Measurement()
    weakly(measurement.tell, measurement.fail)()
    assert measurement.told == ["between two steps: gone"]
