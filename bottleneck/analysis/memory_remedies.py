"""Finds changes that give back a device's memory."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from bottleneck.schema.allocator import HeldMemory, HolderKind, MemoryHolder, SnapshotRemedy
from bottleneck.units import counted, format_memory, format_share

_EXPANDABLE = SnapshotRemedy(
    "Let segments grow, so that free memory is not cut into pieces",
    "",
    "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
)
# Of a kind's bytes the part that its remedy gives back, at least and at most, and the remedy.
_OF_KINDS: Mapping[HolderKind, tuple[float, float, str, str]] = {
    # Adam's two states of 4 bytes become 2 x 1 byte and scales, or 2 x 2 bytes.
    "optimizer state": (
        0.5,
        0.75,
        "Keep the optimizer's state in fewer bytes, or shard it over ranks (FSDP, ZeRO)",
        "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)",
    ),
    "optimizer temporaries": (
        0.9,
        1.0,
        "Update all parameters in one fused call: it makes no lists of temporaries",
        "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)",
    ),
    # Two blocks of n keep 2 / n of it, none keep nothing but their inputs.
    "forward pass": (
        0.3,
        0.9,
        "Recompute blocks in the backward pass in place of keeping their activations",
        "y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    ),
    "parameters": (
        0.5,
        0.5,
        "Hold the parameters in bf16, or shard them over ranks (FSDP)",
        "model = model.to(torch.bfloat16)",
    ),
}
_WORTH = 0.05
# The allocator rounds large requests up to 2 MiB, and small ones share segments.
_MARGIN = 0.95
# So much of the common pool in pieces is worth a change without a failed request.
_MUCH_IN_PIECES = 0.2


def memory_remedies(held: HeldMemory) -> tuple[SnapshotRemedy, ...]:
    """Gives the changes that this device's memory calls for.

    What is kept by mistake comes first, then what the failed request needs, then the largest kinds.
    """
    return (*_kept(held), *_pieces(held), *_smaller_batch(held), *_by_kind(held))


def _kept(held: HeldMemory) -> Iterator[SnapshotRemedy]:
    for one in held.growing:
        if one.place is not None:
            yield SnapshotRemedy(
                f"Let go of the tensors made at {one.place}: a list, an attribute or a graph keeps them",
                f"{counted(one.blocks, 'block')} of the history that nothing freed; they grew in each fifth of it",
                "history.append(loss.item())  # or loss.detach().cpu(): a tensor keeps its graph",
                (one.grown_bytes, one.grown_bytes),
            )


def _pieces(held: HeldMemory) -> Iterator[SnapshotRemedy]:
    """Advises on free memory in pieces, where that is the fault or much."""
    free, failed = held.free, held.failed
    if failed is not None and failed.cause == "fragmented":
        reason = (
            f"{format_memory(free.free_bytes)} was free in {counted(free.pieces, 'piece')}, the largest of "
            f"{format_memory(free.largest_bytes)}: in one piece the request of "
            f"{format_memory(failed.requested_bytes)} had fitted"
        )
    elif (
        failed is None
        and free.pieces > 1
        and free.free_bytes - free.largest_bytes > _MUCH_IN_PIECES * max(held.reserved_bytes, 1)
    ):
        reason = (
            f"{format_share(free.free_bytes / held.reserved_bytes)} of the reserved memory is free, in "
            f"{counted(free.pieces, 'piece')}"
        )
    else:
        return
    if held.is_expandable:
        yield SnapshotRemedy(
            "Use few sizes: pad batches to some lengths, so that freed blocks fit again",
            f"{reason}; segments can grow already",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,roundup_power2_divisions:8",
        )
    else:
        yield SnapshotRemedy(_EXPANDABLE.change, reason, _EXPANDABLE.code)


def _bytes_by_kind(held: HeldMemory) -> dict[HolderKind, int]:
    sums: dict[HolderKind, int] = defaultdict(int)
    for one in held.holders:
        sums[one.kind] += one.held_bytes
    return sums


def _smaller_batch(held: HeldMemory) -> Iterator[SnapshotRemedy]:
    """Gives the largest part of the batch that would have fitted.

    Activations, and the request that failed among them, grow with the batch.
    """
    failed = held.failed
    grows = _bytes_by_kind(held).get("forward pass", 0) if failed is not None else 0
    if failed is None or failed.cause != "full" or not grows:
        return
    part = _MARGIN * (1 - failed.lacking_bytes / (grows + failed.requested_bytes))
    if part > 0:
        yield SnapshotRemedy(
            f"Take at most {100 * part:.0f} % of the batch at once, and accumulate gradients over the parts",
            f"{format_memory(failed.lacking_bytes)} was missing; the forward pass holds {format_memory(grows)}, which "
            "grow with the batch",
            "for part in batch.chunk(2):\n    (loss_of(part) / 2).backward()",
            (failed.lacking_bytes, failed.lacking_bytes),
        )


def _by_kind(held: HeldMemory) -> Iterator[SnapshotRemedy]:
    sums = _bytes_by_kind(held)
    for kind, (least, most, change, code) in sorted(_OF_KINDS.items(), key=lambda item: -sums.get(item[0], 0)):
        size = sums.get(kind, 0)
        if size >= _WORTH * held.allocated_bytes and size:
            largest = _largest_of(held, kind)
            where = f", most at {largest.place}" if largest.place is not None else ""
            yield SnapshotRemedy(
                change, f"{kind}: {format_memory(size)}{where}", code, (round(least * size), round(most * size))
            )


def _largest_of(held: HeldMemory, kind: HolderKind) -> MemoryHolder:
    return max((one for one in held.holders if one.kind == kind), key=lambda one: one.held_bytes)


def describe_failure(held: HeldMemory) -> str | None:
    """Gives the sentence on the request that failed; null where none did."""
    failed = held.failed
    if failed is None:
        return None
    asked = f"A request of {format_memory(failed.requested_bytes)}" + (f" at {failed.place}" if failed.place else "")
    own = held.free
    device = f", and the device had {format_memory(failed.device_free_bytes)} left" if failed.device_free_bytes else ""
    pieces = (
        f"{format_memory(own.free_bytes)} was free in {counted(own.pieces, 'piece')}, the largest of "
        f"{format_memory(own.largest_bytes)}{device}"
    )
    if failed.cause == "fragmented":
        return f"{asked} failed though enough was free: {pieces}"
    return f"{asked} failed: it lacked {format_memory(failed.lacking_bytes)}. {pieces[0].upper()}{pieces[1:]}"
