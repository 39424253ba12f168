"""Counts of parameters and multiply-adds, made from shapes alone so that no code of the package is trusted."""

import math

import torch
from torch import Tensor, nn


def parameter_count(model: nn.Module) -> int:
    """Numbers in all parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def prunable(model: nn.Module) -> dict[str, int]:
    """Sizes of the weights of convolutions and linear layers, by module name."""
    return {name: module.weight.numel() for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}


def macs(model: nn.Module, *shape: int) -> int:
    """Multiply-adds of convolutions and linear layers on one input of this shape, on the device of the model."""
    counted = []

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            an_output = module.in_channels // module.groups * math.prod(module.kernel_size)
            counted.append(output.numel() * an_output)
        elif isinstance(module, nn.Linear):
            counted.append(output.numel() * module.in_features)

    for module in model.modules():
        module.register_forward_hook(count)
    device = next(model.parameters()).device
    model.eval()(torch.empty(1, *shape, device=device))
    return sum(counted)
