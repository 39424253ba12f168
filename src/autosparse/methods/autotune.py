"""Algorithm 1: alpha follows the losses of a dense run, which a reference file holds. Plain Python, no torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from autosparse.common.files import write_json
from autosparse.common.words import require
from autosparse.methods.target import refuse_difference

_FORMAT, _VERSION = "autosparse-reference", 1


def _checked_losses(losses: Iterable[object], source: str) -> tuple[float, ...]:
    checked = []
    for epoch, loss in enumerate(losses):
        if isinstance(loss, bool) or not isinstance(loss, Real) or not 0.0 < float(loss) < math.inf:
            raise ValueError(f"{source}: the loss of epoch {epoch} is {loss!r}; losses must be finite numbers above 0")
        checked.append(float(loss))
    return tuple(checked)


def _plain(settings: Mapping[str, object] | None) -> dict[str, object]:
    """Settings as JSON gives them back (tuples become lists), so that a file and a run can be compared."""
    try:
        plain: dict[str, object] = json.loads(json.dumps(dict(settings or {})))
    except TypeError as error:
        raise TypeError(f"settings must be plain values that JSON can hold: {error}") from None
    return plain


@dataclass(frozen=True, kw_only=True)
class AutoTune:
    """Algorithm 1: T0 `epochs`, eps0 `tolerance`, eps1 `up`, eps2 `down`; `reference` losses of a dense run."""

    epochs: int = 9
    tolerance: float = 0.01
    up: float = 0.05
    down: float = 0.005
    start: float = 0.5
    reference: Sequence[float] | str | os.PathLike[str] | None = None
    settings: Mapping[str, object] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        whole = isinstance(self.epochs, int) and not isinstance(self.epochs, bool)
        require(whole and self.epochs >= 1, "epochs", self.epochs, "a whole number of at least 1")
        require(0.0 <= self.tolerance < math.inf, "tolerance", self.tolerance, "a finite number >= 0")
        require(0.0 < self.up < math.inf, "up", self.up, "a finite number above 0")
        require(0.0 <= self.down < 1.0, "down", self.down, "[0, 1)")
        # From 0 the products of Algorithm 1 never move.
        require(0.0 < self.start <= 1.0, "start", self.start, "(0, 1]")
        if self.settings is not None:
            object.__setattr__(self, "settings", _plain(self.settings))
        if self.reference is not None and not isinstance(self.reference, (str, os.PathLike)):
            # A tuple of its own: a list that the caller changes later must not change a frozen config.
            object.__setattr__(self, "reference", _checked_losses(self.reference, "reference"))
            self.losses()

    def losses(self) -> tuple[float, ...]:
        """The reference losses, read from the file if `reference` names one; at least `epochs` of them."""
        if self.reference is None:
            raise ValueError(
                "AutoTune has no reference losses: train the dense model for "
                f"{self.epochs} epochs with autosparse.methods.autotune.ReferenceRecorder(path), then give reference=path"
            )
        if isinstance(self.reference, (str, os.PathLike)):
            losses, _ = _read_reference(Path(self.reference))
        else:
            losses = tuple(self.reference)
        if len(losses) < self.epochs:
            raise ValueError(
                f"AutoTune tunes for {self.epochs} epochs, but the reference holds {len(losses)} losses: "
                f"record {self.epochs} dense epochs, or give AutoTune(epochs={max(1, len(losses))})"
            )
        return losses

    def plain(self) -> dict[str, Any]:
        """Plain values; the losses instead of where they were read from."""
        return {**asdict(self), "reference": list(self.losses())}

    def settings_difference(self) -> list[str]:
        """A sentence for every setting in which the reference run differs from this one."""
        if self.settings is None or not isinstance(self.reference, (str, os.PathLike)):
            return []
        _, recorded = _read_reference(Path(self.reference))
        if not recorded:
            return []
        sentences = []
        for name in sorted(recorded.keys() | self.settings.keys()):
            if name not in recorded:
                sentences.append(f"this run has {name} = {self.settings[name]!r}, the reference does not say its own")
            elif name not in self.settings:
                sentences.append(f"the reference has {name} = {recorded[name]!r}, this run does not say its own")
            elif recorded[name] != self.settings[name]:
                sentences.append(
                    f"the reference was recorded with {name} = {recorded[name]!r}, this run has {self.settings[name]!r}"
                )
        return sentences


def read_losses(reference: Sequence[float] | str | os.PathLike[str]) -> tuple[float, ...]:
    """Reference losses as they are given, or from the file that ReferenceRecorder wrote."""
    if isinstance(reference, (str, os.PathLike)):
        return _read_reference(Path(reference))[0]
    return _checked_losses(reference, "reference")


def _read_reference(path: Path) -> tuple[tuple[float, ...], dict[str, object]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"reference file {path} does not exist; ReferenceRecorder writes one in a dense run") from None
    except (ValueError, RecursionError) as error:  # bytes that are no text, numbers of many digits, lists in lists in lists
        raise ValueError(f"reference file {path} is not JSON: {error}") from None
    if isinstance(content, list):
        return _checked_losses(content, str(path)), {}
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"reference file {path} is neither a list of losses nor a file of ReferenceRecorder")
    if content.get("version") != _VERSION:
        raise ValueError(f"reference file {path} has version {content.get('version')!r}; this release reads {_VERSION}")
    losses, settings = content.get("losses"), content.get("settings") or {}
    if not isinstance(losses, list) or not isinstance(settings, dict):
        raise ValueError(f"reference file {path} is damaged: it needs a list `losses` and an object `settings`")
    return _checked_losses(losses, str(path)), settings


class ReferenceRecorder:
    """Writes the mean loss of every epoch of a dense run to a JSON file for `AutoTune(reference=path)`."""

    def __init__(
        self, path: str | os.PathLike[str], settings: Mapping[str, object] | None = None, *, overwrite: bool = False
    ) -> None:
        self.path = Path(path)
        if self.path.exists() and not overwrite:
            raise ValueError(f"{self.path} exists already; choose another path or give overwrite=True")
        self.settings = _plain(settings)
        self.losses: list[float] = []

    def record(self, loss: float) -> None:
        """Add the mean training loss of the epoch just done; the file is complete after every call."""
        losses = [*self.losses, float(loss)]
        _checked_losses(losses, "ReferenceRecorder")
        content = {"format": _FORMAT, "version": _VERSION, "losses": losses, "settings": self.settings}
        write_json(self.path, content)
        self.losses = losses


class AlphaTuner:
    """Algorithm 1: for the first T0 epochs alpha follows the gap between the sparse run's loss and the dense run's."""

    def __init__(self, config: AutoTune) -> None:
        self.config = config
        self.alpha = config.start
        self.history: list[tuple[int, float, float, float]] = []  # epoch, loss, reference, alpha after
        self._reference = config.losses()[: config.epochs]

    @property
    def tuned(self) -> bool:
        """Whether the losses of all T0 epochs have been seen: alpha then stays, and only decays."""
        return len(self.history) >= self.config.epochs

    def observe(self, epoch: int, loss: float) -> float:
        """Take the mean training loss of `epoch` (from 0), give the alpha of the next; from T0 on nothing changes."""
        loss = float(loss)
        if not math.isfinite(loss):
            raise ValueError(f"the loss of epoch {epoch} is {loss}; auto-tune needs a finite loss")
        if self.tuned and epoch >= self.config.epochs:
            return self.alpha
        if epoch != len(self.history):
            raise ValueError(f"auto-tune expected the loss of epoch {len(self.history)} and was given epoch {epoch}")
        reference = self._reference[epoch]
        too_high = loss >= (1.0 + self.config.tolerance) * reference
        self.alpha *= 1.0 + self.config.up if too_high else 1.0 - self.config.down
        self.alpha = min(1.0, max(0.0, self.alpha))
        self.history.append((epoch, loss, reference, self.alpha))
        return self.alpha

    def alpha_at(self, epoch: float, anneal: Callable[[float, float], float], epochs: float) -> float:
        """Alpha of `epoch`: the running value before T0, then alpha_T0 * anneal(epoch - T0, epochs - T0)."""
        tuning = self.config.epochs
        if epochs <= tuning:
            raise ValueError(
                f"auto-tune takes the first {tuning} epochs and the run has {epochs}: train longer, "
                "or give AutoTune fewer epochs"
            )
        if epoch < tuning:
            return self.alpha
        if not self.tuned:
            raise RuntimeError(
                f"alpha of epoch {epoch} needs the losses of the first {tuning} epochs, "
                f"and {len(self.history)} were observed: pass the mean loss at the end of every epoch"
            )
        return self.alpha * anneal(epoch - tuning, epochs - tuning)

    def _identity(self) -> dict[str, Any]:
        config = self.config
        constants = {"epochs": config.epochs, "tolerance": config.tolerance, "up": config.up, "down": config.down}
        return {**constants, "start": config.start, "reference": list(self._reference)}

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        return {**self._identity(), "alpha": self.alpha, "history": [list(entry) for entry in self.history]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`; other constants or other reference losses are refused."""
        refuse_difference("auto-tune", state, self._identity())
        self.history = [(int(e), float(loss), float(ref), float(alpha)) for e, loss, ref, alpha in state["history"]]
        self.alpha = float(state["alpha"])


def threshold_decay(total: float, lrs: Iterable[float], momentum: float = 0.0) -> float:
    """Weight decay that shrinks s by `total` nats over a run: D (1 - momentum) / sum(lr), with the lr of every step."""
    require(0.0 <= total < math.inf, "total", total, "a finite number of nats >= 0")
    require(0.0 <= momentum < 1.0, "momentum", momentum, "[0, 1)")
    rates = [float(rate) for rate in lrs]
    for step, rate in enumerate(rates):
        require(0.0 <= rate < math.inf, f"the learning rate of step {step}", rate, "a finite number >= 0")
    summed = math.fsum(rates)
    if summed <= 0.0:
        raise ValueError(f"the {len(rates)} learning rates sum to 0; lrs needs the learning rate of every step of the run")
    return total * (1.0 - momentum) / summed
