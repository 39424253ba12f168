"""AC/DC: alternating compressed and decompressed training; a sparse and a dense network from one run."""

from __future__ import annotations

import torch
from torch import Tensor

from autosparse.common.warnings import warn
from autosparse.methods.families.base import About, Run, require, require_sparsity
from autosparse.methods.families.fixed_mask import FixedMask, mask_of, set_mask
from autosparse.methods.families.scored import RankedMask, select
from autosparse.methods.registry import register


@register
class ACDC(RankedMask, FixedMask):
    """Dense and sparse phases take turns; gives back a dense twin of the sparse network too.

    The smallest weights become 0 at the start of a sparse phase and may grow after it.
    """

    about = About(
        name="acdc",
        year=2021,
        family="fixed budget",
        pruned_gradient="none in sparse phases; nothing is pruned in dense ones",
        train_flops="3 f_S in sparse phases (half of the run), 3 f_D in dense ones",
        reference="Peste et al., AC/DC: Alternating Compressed/DeCompressed Training of Deep Neural Networks, NeurIPS 2021, "
        "arXiv 2106.12379",
    )

    sparsity: float = 0.9
    warm_up: float = 0.1
    phase: float = 0.05
    last_dense: float = 0.1
    last_sparse: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sparsity("sparsity", self.sparsity)
        for name in ("warm_up", "phase", "last_dense", "last_sparse"):
            value = getattr(self, name)
            require(0 <= value < 1, f"{name} = {value}; it is a part of the run: 0 <= {name} < 1")
        require(self.phase > 0, "phase = 0; phases need a length, as a part of the run")
        require(self.last_sparse > 0, "last_sparse = 0; the run must end with a sparse phase")
        together = self.warm_up + self.last_dense + self.last_sparse
        require(together <= 1, f"warm_up, last_dense and last_sparse take {together:.4g} of the run; allowed: at most 1")

    def switches(self, total_steps: int) -> list[tuple[int, bool]]:
        """The steps at which phases begin, rising, and whether a phase is sparse."""
        alternating = 1 - self.last_sparse - self.last_dense - self.warm_up
        count = int(alternating / self.phase + 1e-6)  # whole ones
        starts = [(self.warm_up + number * self.phase, number % 2 == 0) for number in range(count)]
        starts += [(1 - self.last_sparse - self.last_dense, False), (1 - self.last_sparse, True)]
        return [(round(start * total_steps), is_sparse) for start, is_sparse in starts]

    def check(self, sp: Run) -> None:
        super().check(sp)
        starts = [step for step, _ in self.switches(sp.total_steps)[:-1]]  # the last dense phase may be left out
        if len(set(starts)) < len(starts):
            warn(
                f"a run of {sp.total_steps} steps has no room for phases of {self.phase:g} of it, some are left out: "
                "train longer, or lengthen `phase`"
            )

    def is_sparse(self, step: int, total_steps: int) -> bool:
        """Whether the step lies in a sparse phase."""
        return next((kind for start, kind in reversed(self.switches(total_steps)) if start <= step), False)

    def start(self, sp: Run) -> None:
        super().start(sp)
        if self.is_sparse(0, sp.total_steps):
            self.compress(sp)

    def after_step(self, sp: Run) -> None:
        super().after_step(sp)
        if self.due(sp):
            self.compress(sp) if self.is_sparse(sp.step, sp.total_steps) else self.decompress(sp)

    def at_target(self, sp: Run) -> bool:
        return sp.step >= self.switches(sp.total_steps)[-1][0]

    def due(self, sp: Run) -> bool:
        """Whether a phase begins after step sp.step."""
        now, before = (self.is_sparse(step, sp.total_steps) for step in (sp.step, sp.step - 1))
        return 0 < sp.step < sp.total_steps and now != before

    def compress(self, sp: Run) -> None:
        """Only the largest weights stay; what the network was before the last sparse phase is its dense twin."""
        if sp.step >= self.switches(sp.total_steps)[-1][0]:
            sp.memory["dense_twin"] = sp.dense_state_dict()
        self.apply(sp, select({layer.name: layer.weight().abs() for layer in sp.layers}, self.sparsity, self.scope))

    def decompress(self, sp: Run) -> None:
        """All weights learn again; those that were pruned start from 0."""
        for layer in sp.layers:
            set_mask(sp, layer, torch.ones_like(mask_of(layer)))

    def dense_twin(self, sp: Run) -> dict[str, Tensor]:
        """The plain state of the network as the last dense phase left it."""
        if "dense_twin" not in sp.memory:
            raise RuntimeError("the dense twin exists from the last sparse phase on: train further")
        return dict(sp.memory["dense_twin"])

    def notes(self, sp: Run) -> list[str]:
        return ["sparse phase" if self.is_sparse(sp.step, sp.total_steps) else "dense phase"]
