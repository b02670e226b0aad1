"""Optimization profiles as shapes, and what each costs in device memory. Knows sizes; knows nothing of TensorRT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from svtool import graph as graphs
from svtool.config import Profile
from svtool.errors import UsageError
from svtool.frontend import FEATURE_SIZE, LFR_FRAME_S
from svtool.source import Source

Shapes = Mapping[str, Sequence[Sequence[int]]]  # input -> [min, opt, max]

LARGE_BYTES = 8 << 30  # what a small card has
IMPOSSIBLE_BYTES = 320 << 30  # more than any single GPU holds


def profile_shapes(profile: Profile) -> Shapes:
    """All four inputs. From one frame up, so that any batch fits; tuned for the full one."""
    batch, frames = profile.batch, profile.frames
    shapes: dict[str, list[list[int]]] = {name: [[1], [batch], [batch]] for name in graphs.INPUTS}
    full = [batch, frames, FEATURE_SIZE]
    shapes["speech"] = [[1, 1, FEATURE_SIZE], full, full]
    return shapes


def activation_bytes(source: Source, profile: Profile, head: str) -> int:
    """About what one execution context needs on the device at the profile's largest batch."""
    frames = profile.frames + 4
    rows = profile.batch * frames
    stream = rows * source.width * (4 + 2)  # residual in float32 and its fp16 copy
    attention = rows * (3 * source.width * 2 + source.heads * frames * (4 + 2))  # q, k, v; scores twice
    inner = rows * source.units * 2 * 2
    # the logits are computed in fp16 and read by the head in float32
    logits = rows * source.vocabulary * (2 + 4)
    results = rows * source.vocabulary * 4 if head == "logits" else rows * 8
    return stream + max(attention, inner, logits) + results


def check_profiles(
    source: Source,
    profiles: Sequence[Profile],
    head: str,
    note: Callable[[str], None],
    warn: Callable[[str], None],
) -> dict[str, int]:
    """Estimated bytes per profile, said before anything is built. Raises UsageError for what no machine can run."""
    for profile in profiles:
        if profile.frames > source.max_frames:
            raise UsageError(
                f"the profile {profile} means {profile.frames} frames, {source.path} takes {source.max_frames}: "
                f"at most {source.max_frames * LFR_FRAME_S:g} seconds"
            )
    estimates = {str(profile): activation_bytes(source, profile, head) for profile in profiles}
    for name, size in estimates.items():
        if size > IMPOSSIBLE_BYTES:
            raise UsageError(
                f"the profile {name} needs about {megabytes(size)} of GPU memory, more than any GPU has: "
                "choose a smaller batch or fewer seconds in --profile B:SECONDS"
            )
        note(f"profile {name}: about {megabytes(size)} of GPU memory per execution context")
        if size > LARGE_BYTES:
            warn(
                f"the profile {name} is very large (about {megabytes(size)}): "
                "batches of long audio grow with T squared"
            )
    return estimates


def megabytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
