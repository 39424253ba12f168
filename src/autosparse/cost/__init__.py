"""MACs of every layer, and the ledger of training and inference FLOPs."""

from autosparse.cost.layers import LayerCost, Profile
from autosparse.cost.ledger import Ledger
from autosparse.cost.recorder import Recorder, profile

__all__ = ["LayerCost", "Ledger", "Profile", "Recorder", "profile"]
