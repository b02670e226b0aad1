"""Audio that calibrated an engine must not judge it: its ranges fit that audio better than any other.

Knows manifests and digests of audio. Knows nothing of texts or scores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svtool.audiofacts import audio_digest
from svtool.errors import AudioError, SvtoolError, counted
from svtool.lists import some
from svtool.manifest import manifest_path, read_manifest

if TYPE_CHECKING:
    from svtool.progress import Progress
    from svtool.utterances import Utterance


def overlap_notes(
    artifacts: Sequence[Path], utterances: Sequence[Utterance], *, allowed: bool, progress: Progress
) -> dict[Path, str]:
    """What to say of artifacts that were calibrated on some of `utterances`, or perhaps were.

    Raises SvtoolError at the first that was, unless that is `allowed`. Audio is decoded only where some artifact
    was calibrated; files that cannot be decoded are left to the side that will fail on them.
    """
    facts = {artifact: _calibration(artifact) for artifact in artifacts}
    known = {artifact: one["audio_digests"] for artifact, one in facts.items() if one.get("audio_digests")}
    heard = _digests(utterances, progress) if known else {}
    notes = {}
    for artifact, one in facts.items():
        if artifact in known:
            shared = _shared(heard, known[artifact])
            if shared and not allowed:
                raise SvtoolError(_refusal(artifact, one, shared, len(utterances)))
            if shared:
                share = f"{len(shared):,} of {counted(len(utterances), 'utterance')}"
                notes[artifact] = f"{share} were in its calibration set: its score flatters it"
        elif one:
            notes[artifact] = (
                "its calibration set is not recorded, so it is not known whether it holds any of these utterances"
            )
    return notes


def shared_ids(digests: Collection[str], utterances: Sequence[Utterance], progress: Progress) -> list[str]:
    """Ids of the utterances whose audio is among `digests`."""
    return _shared(_digests(utterances, progress), digests) if digests else []


def _shared(heard: Mapping[str, str], digests: Collection[str]) -> list[str]:
    wanted = set(digests)
    return [name for name, digest in heard.items() if digest in wanted]


def _calibration(artifact: Path) -> Mapping[str, Any]:
    """Of its manifest; empty where nothing was calibrated, or nothing is known."""
    described = read_manifest(artifact) if manifest_path(artifact).is_file() else {}
    found = described.get("calibration")
    return found if isinstance(found, dict) else {}


def _digests(utterances: Sequence[Utterance], progress: Progress) -> dict[str, str]:
    progress.stage("Looking for calibration audio", total=len(utterances))
    found = {}
    for one in utterances:
        with suppress(AudioError):
            found[one.id] = audio_digest(one.audio)
        progress.advance()
    return found


def _refusal(artifact: Path, calibration: Mapping[str, Any], shared: Sequence[str], total: int) -> str:
    source = calibration.get("list_name") or "a list of no name"
    return (
        f"{len(shared):,} of {counted(total, 'utterance')} also calibrated {artifact} (from {source}): {some(shared)}; "
        "a score on them says little about other audio: validate on another list, or compare all the same with  "
        "--allow-overlap"
    )
