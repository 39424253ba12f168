"""Our translation Transformer, decoded natively; `serving.decoders` loads this when such a model is deployed."""

from autosparse.serving.translation.deployed import DeployedTransformer

__all__ = ["DeployedTransformer"]
