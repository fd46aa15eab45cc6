"""Run in a process of its own: what NVML says of its devices, since a broken driver may hang or crash who asks."""

import json


def tell(stage: str, **facts: object) -> None:
    """Writes a line that the other side recognises among whatever else is printed."""
    print(f"\nbottleneck-fact {json.dumps([stage, facts])}", flush=True)


def main() -> None:
    """Binding, library or its refusal, devices, sensors."""
    import pynvml

    # The unofficial package of the same name lacks what the official one keeps for itself.
    tell("binding", file=str(pynvml.__file__), is_official=hasattr(pynvml, "_nvmlGetFunctionPointer"))
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        tell("refusal", code=int(exc.value), text=str(exc))
        return
    tell("devices", **_devices(pynvml))
    from bottleneck.harness.nvml import NvmlSampler

    sampler = NvmlSampler()
    if sampler.open(0):
        tell("sensors", columns=sampler.columns())
        sampler.close()


def _devices(nvml: object) -> dict[str, object]:
    from bottleneck.harness.nvml import find_devices

    found, complaints = find_devices(nvml)
    names = {device.sensor: _name(nvml, device.handle) for device in found}
    return {"names": names, "slices": [each.sensor for each in found if each.slice_of], "complaints": complaints}


def _name(nvml: object, handle: object) -> str:
    try:
        return str(nvml.nvmlDeviceGetName(handle))  # type: ignore[attr-defined]  # the binding has no types
    except Exception:  # names with odd bytes raise what they like
        return "NVIDIA device"


if __name__ == "__main__":
    main()
