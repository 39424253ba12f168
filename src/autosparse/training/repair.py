"""Run folders after a power cut: what was damaged is named, and written again from the last checkpoint."""

from __future__ import annotations

from autosparse.common.warnings import warn
from autosparse.training.folder import RunFolder


def is_intact(folder: RunFolder) -> bool:
    """Whether the folder holds a finished run with all of its files."""
    return folder.done and not folder.faults()


def repair(folder: RunFolder) -> None:
    """Before a resume, by the owner of the folder: let a damaged run that was done finish once more."""
    if folder.done:
        _reopen(folder)
    elif folder.info.exists() and not folder.read_info():
        warn(f"{folder.path}: {'; '.join(folder.faults(folder.info))}; it is written again")
    if folder.reference.exists() and (faults := folder.faults(folder.reference)):
        warn(f"{folder.path}: {faults[0]}; it is written again")
        folder.reference.unlink()


def _reopen(folder: RunFolder) -> None:
    """The end of the last epoch is in the checkpoint: from there the same model and the same figures are written again."""
    faults = folder.faults()
    if not faults:
        return
    if not folder.checkpoints.is_dir() or not any(folder.checkpoints.glob("last*")):
        raise ValueError(
            f"the run in {folder.path} is done, but {'; '.join(faults)}, and there is no checkpoint to write it again from: "
            "restore it from a copy, or train again with another --out"
        )
    warn(f"{folder.path}: {'; '.join(faults)}; the run is finished again from its last checkpoint")
    folder.update_info(status="running", files={})
    folder.result.unlink()
