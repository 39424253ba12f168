"""Which channels of a network are one channel, and how dead ones leave it."""

from autosparse.structure.cutting import Plan, shrink_like
from autosparse.structure.graph import ChannelGraph, follow
from autosparse.structure.report import Shrinkage
from autosparse.structure.shrinking import shrink
from autosparse.structure.tracing import CannotFollow

__all__ = ["CannotFollow", "ChannelGraph", "Plan", "Shrinkage", "follow", "shrink", "shrink_like"]
