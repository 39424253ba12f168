"""For every field of every method another value, and what else it takes for the field to matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autosparse import AutoTune, GradientAnnealing


@dataclass(frozen=True)
class Other:
    """Another value of a field; `given` is set in both runs."""

    value: Any
    given: Mapping[str, Any] = field(default_factory=dict)


GA = GradientAnnealing(alpha=0.3)
SPARSE_ENDS = {"dense_first": False, "dense_last": False}
ENDS = {"dense_first": Other(True), "dense_last": Other(True)}

BUDGET = {"max_loss_increase": 0.01, "reference": (1.2,) * 4}  # which the loss exceeds by some

LEARNED_THRESHOLD = {
    "s_init": Other(-4.0, {"start_sparsity": None}),
    "start_sparsity": Other(0.6),
    "g": Other("exp"),
    "threshold": Other("channel"),
    "target_sparsity": Other(0.7),
    "target_ramp": Other(0.2, {"target_sparsity": 0.7}),
    "target_flops": Other(0.6, {"target_sparsity": None}),
    "target_size": Other("5 kB", {"target_sparsity": None}),
    "target_latency": Other(1.0, {"target_sparsity": None}),
    "precision": Other("int8", {"target_sparsity": None, "target_latency": 1.0}),
    "max_loss_increase": Other(0.9, {"target_sparsity": None, **BUDGET}),
    "reference": Other((90.0,) * 4, {"target_sparsity": None, **BUDGET}),
    "rows_per_pattern": Other(2),
}
PERIODIC = {
    "sparsity": Other(0.6),
    "distribution": Other("er", SPARSE_ENDS),
    "update_every": Other(5),
    **ENDS,
}
MAGNITUDE = {**PERIODIC, "rows_per_pattern": Other(2)}
TOPKAST = {
    **PERIODIC,
    "dense_first": Other(False),
    "dense_last": Other(False),
    "ga": Other(GA),
    "backward_sparsity": Other(0.25),
    "exploration": Other(0.1),
    "power": Other(1.2),
    "soft": Other(True),
}
RAMP = {"start_sparsity": Other(0.5), "begin": Other(0.1), "end": Other(0.5)}
RANDOM_START = {
    "sparsity": Other(0.6),
    "distribution": Other("er"),
    "dense_first": Other(False),  # None leaves the first layer dense under "uniform"
    "dense_last": Other(True),
}
REPLACEMENT = {**RANDOM_START, "update_every": Other(3), "drop_fraction": Other(0.4), "update_end": Other(0.4)}
RANKED = {"sparsity": Other(0.6), "scope": Other("layer"), **ENDS}

AUTOSPARSE = {
    **LEARNED_THRESHOLD,
    "alpha": Other(0.2),
    "schedule": Other("linear"),
    "beta": Other(3.0, {"schedule": "exponential"}),
    "zero_epoch": Other(1),
    "horizon": Other(2),
    "backward_sparsity": Other(0.3),
    "dense_grad_every": Other(2),
    "shape": Other(2.0),
    "rescale": Other(True),
    "autotune": Other(AutoTune(epochs=2, reference=(1.0, 1.0))),
    "preset": Other("fast"),
    "alpha_per": Other("epoch", {"schedule": "linear"}),
}
SHARED_THRESHOLD = {
    **AUTOSPARSE,
    "s_init": Other(0.01, {"start_sparsity": None}),
    "start_sparsity": Other(0.3),
    "g": Other("exp"),
    "threshold": Other("layer", {"g": "exp"}),
    "target_sparsity": Other(0.6),
    "target_ramp": Other(0.2),
    "horizon": Other(2, {"schedule": "linear"}),
    "autotune": Other(AutoTune(epochs=2, reference=(1.0, 1.0)), {"target_sparsity": None, "alpha": None}),
}
ST3_FIELDS = {**SHARED_THRESHOLD, "rescale": Other(False), "sigma": Other(True)}

OTHERS: dict[str, dict[str, Other]] = {
    "autosparse": AUTOSPARSE,
    "st3": ST3_FIELDS,
    "st3+ga": ST3_FIELDS,
    "feather": SHARED_THRESHOLD,
    "feather+ga": SHARED_THRESHOLD,
    "granet": {
        **REPLACEMENT,
        "distribution": Other("uniform", {"dense_first": False}),
        "dense_first": Other(True),
        "start_sparsity": Other(0.3),
        "ramp_end": Other(0.6),
        "final_drop_fraction": Other(0.3),
    },
    "acdc": {
        **RANKED,
        "warm_up": Other(0.3),
        "phase": Other(0.2),
        "last_dense": Other(0.2),
        "last_sparse": Other(0.3),
    },
    "keep": {},
    "wanda": {**RANKED, "scope": Other("layer")},
    "str": LEARNED_THRESHOLD,
    "dst": {**ENDS, "penalty_weight": Other(0.01), "reset": Other(0.95, {"penalty_weight": 0.01})},
    "optg": {**ENDS, "sparsity": Other(0.6), "beta": Other(5.0)},
    "ltp": {
        **ENDS,
        "penalty_weight": Other(1e-3),
        "temperature": Other(0.1),
        "start_sparsity": Other(0.5),
        "penalty_on_weights": Other(True),
        "hard_epoch": Other(2),
    },
    "cs": {
        "dense_first": Other(True),
        "dense_last": Other(False),
        "s_init": Other(0.05),
        "final_beta": Other(20.0),
        "penalty_weight": Other(1e-2),
        "rounds": Other(3, {"rewind_epoch": 0}),
        "train_ticket": Other(False, {"rewind_epoch": None}),
        "rewind_epoch": Other(0),
        "rewind_only_ticket": Other(True, {"rounds": 2}),
    },
    "scl": {
        **ENDS,
        "penalty_weight": Other(1.0),
        "schedule": Other("linear", {"penalty_weight": 1.0}),
        "m_init": Other(0.15),
        "normalize": Other(False),
    },
    "topkast": TOPKAST,
    "topkast+pp": TOPKAST,
    "topkast+ga": TOPKAST,
    "rigl": REPLACEMENT,
    "set": {
        **REPLACEMENT,
        "distribution": Other("uniform", {"dense_first": False}),
        "dense_first": Other(False, {"distribution": "uniform"}),
        "drop_decay": Other("cosine"),
        "drop_by": Other("signed"),
    },
    "dsr": {
        **RANDOM_START,
        "dense_first": Other(True),
        "threshold": Other(0.1),
        "prune_fraction": Other(0.4),
        "tolerance": Other(0.95),
        "update_every": Other(3),
        "doublings": Other(()),
        "update_end": Other(0.4),
    },
    "snfs": {**REPLACEMENT, "dense_first": Other(True), "final_drop_fraction": Other(0.3)},
    "mest": {
        **RANDOM_START,
        "distribution": Other("er", {"dense_first": False}),
        "soft": Other(True),
        "mutation": Other((0.2, 0.1)),
        "stages": Other((0.3, 0.5)),
        "update_epochs": Other(2),
        "gradient_weight": Other(5.0),
    },
    "swat": {
        **MAGNITUDE,
        "distribution": Other("global"),
        "dense_first": Other(False),
        "activation_sparsity": Other(0.2),
        "ga": Other(GA),
    },
    "gmp": {**MAGNITUDE, **RAMP, "dense_first": Other(False), "last_sparsity": Other(0.5)},
    "dnw": {**MAGNITUDE, "ga": Other(GA)},
    "dpf": {**MAGNITUDE, **RAMP, "dense_last": Other(False), "ga": Other(GA)},
    "snip": RANKED,
    "grasp": {**RANKED, "temperature": Other(1.0)},
    "synflow": {**RANKED, "scope": Other("global"), "rounds": Other(1)},
    "random": {
        **RANDOM_START,
        "distribution": Other("uniform", {"dense_first": False}),
        "dense_first": Other(False, {"distribution": "uniform"}),
    },
    "prune_retrain": {
        **RANKED,
        "scope": Other("global"),
        "quality": Other(1.0, {"sparsity": None}),
        "rounds": Other(2),
    },
    "lottery": {**RANKED, "rounds": Other(2), "rewind_epoch": Other(0)},
    "3sp": {
        "flops": Other(0.3, {"sparsity": None}),
        "sparsity": Other(0.7),
        "per_flop": Other(False),
    },
    "gdp": {
        "penalty_weight": Other(5.0),
        "flops": Other(0.9),
        "theta_init": Other(0.6),
        "epsilon": Other(0.2),
        "final_epsilon": Other(0.01),
        "closed_below": Other(0.1),
    },
    "gradmax": {
        "start_width": Other(0.4),
        "final_width": Other(0.75),
        "begin": Other(0.3),
        "end": Other(0.8),
        "growths": Other(2),
        "scale": Other(1.0),
        "epsilon": Other(0.1),
    },
    "dns": {
        **ENDS,
        "c_rate": Other(0.5),
        "margin": Other(0.3),
        "gamma": Other(1.0),
        "power": Other(0.2, {"gamma": 1.0}),
        "iter_stop": Other(3),
        "ga": Other(GA),
    },
}
