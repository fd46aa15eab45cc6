"""The one table of thresholds that decide a bound: each with its value, its meaning and where it comes from."""

from dataclasses import dataclass, replace

from bottleneck.records import Device


@dataclass(frozen=True)
class Thresholds:
    """Shares of a duration unless said otherwise.

    "Prototype" is a classifier tried on 58 public traces of B200, H100, A100, V100, MI210, MI250 and MI300X.
    """

    # The launch floor takes this part of the time, and arithmetic and bytes less than the next one. (prototype)
    launch_share: float = 0.5
    work_share: float = 0.5
    # Without a price only this much launch floor proves overhead: a fifth is too little for work. (ours)
    launch_alone: float = 0.8
    # A kernel with idle multiprocessors, shorter than this many launch floors, is mostly ramp-up. (prototype)
    short_floors: float = 4.0
    # The best large ops of the traces reach 71-97 % of a data sheet; half of that is bound by it. (prototype)
    compute_share: float = 0.4
    # Against a data sheet; real streams reach 79-97 % of it. (prototype)
    memory_share: float = 0.4
    # Against a measured bandwidth, which real code can reach. (prototype)
    measured_memory_share: float = 0.6
    # A floor this far above the time is an error of ours, not noise: 0 of 41,798 priced ops had one once the cache was
    # counted. (prototype)
    beyond: float = 1.03
    # Real clocks against data sheets: H100 +8 %, A100 under its power limit -8 %. (device table)
    peak_spread: float = 0.08
    # Layout changes beside the main kernel; 14 % of matrix time is usual on an A100 with fp32. (prototype)
    auxiliary_share: float = 0.3
    # Part of the multiprocessors' slots that the waves of a tiled product fill; 83 % cost an H100 a tenth. (prototype)
    wave_efficiency: float = 0.85
    # Tiles that fill less than this come before what a name proves, which costs a factor of two and more. (ours)
    slot_waste: float = 0.4
    # Other work beside a kernel for this part of its time leaves it only a part of the device. (ours)
    shared_share: float = 0.5
    # CPU: a product thinner than this in any direction cannot fill the panels of a matrix library. (ours)
    thin_product: float = 96
    # CPU: data was cold, not cached, if the op took at least this part of what DRAM would need. (ours)
    cold_share: float = 0.8


LAUNCH_FLOOR_PERCENTILE = 10  # of the durations of the smallest kernels (prototype: 1.4-4.7 us on every device)
LAUNCH_FLOOR_BLOCKS = 32  # a kernel of so few blocks has hardly any work
LAUNCH_FLOOR_KERNELS = 5  # fewer kernels say nothing
LAUNCH_FLOOR_LONGEST_US = 20.0  # a longer kernel does real work however few its blocks

REGISTERS = 65536  # 32-bit registers of a multiprocessor, on every GPU since 2012
HIDING_THREADS = 512  # a quarter of what a multiprocessor holds; fewer do not hide the latency of memory
LATENCY_US = 0.6  # from a load to its data in DRAM, on a GPU
SLIM_BYTES = 16.0  # per thread: one load of the widest kind; less is gone before the block has started
GRAIN_BYTES = 4.0 * 32768  # at most one thread's share of a loop: 32768 elements, read and written (ATen's GRAIN_SIZE)

GPU = Thresholds()
# An op's self time under the profiler is overhead below three dispatch floors: the profiler hides most of what it adds.
CPU = replace(GPU, launch_share=1 / 3, launch_alone=1 / 3)


def thresholds_for(device: Device) -> Thresholds:
    """The thresholds for a kind of device and for the way in which its ceilings were found."""
    chosen = CPU if device.kind == "cpu" else GPU
    return replace(chosen, memory_share=chosen.measured_memory_share) if device.source == "measured" else chosen
