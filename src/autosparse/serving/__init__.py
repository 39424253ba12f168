"""Networks prepared for inference on CPUs: `deploy` captures, folds, packs and measures a trained model.

Models that decode token by token get their own deployed class through `register_decoder`.
"""

from autosparse.serving.decoders import DECODERS, register_decoder
from autosparse.serving.deployed import Deployed
from autosparse.serving.deployment import deploy
from autosparse.serving.prepared import load_deployed

__all__ = ["DECODERS", "Deployed", "deploy", "load_deployed", "register_decoder"]
