"""How a sparsified layer computes; owner of every forward override."""

from autosparse.compute.compute import Compute, LayerPlan

__all__ = ["Compute", "LayerPlan"]
