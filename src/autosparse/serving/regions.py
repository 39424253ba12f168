"""Finds the stretches of a graph that the native engine can run, and translates them into its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from autosparse.common.graphs import RELUS, calls
from autosparse.serving.capture import is_sum, layer_name, module_of, shape_of
from autosparse.serving.fold import scale_and_shift
from autosparse.serving.kinds import has_hooks, is_convolution, origin_of
from autosparse.serving.layout import Extent, NotOnGridError, extent_after
from autosparse.serving.steps import ConcatStep, ConvolutionStep, MeanStep, Pair, PoolStep, Region, Step, SumStep

JOINS = {torch.cat, torch.concat}
MODULES: dict[Any, type[nn.Module]] = {
    F.relu6: nn.ReLU6,
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}
# the grid of a mean: it has left the engine, so no later step of the region can read it
LEFT = (0, 0)


def pair(value: int | tuple[int, ...]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def step_for(node: fx.Node, graph: fx.GraphModule, number: Callable[[fx.Node], int]) -> Step | None:
    """The engine's step for a node; None if it has none."""
    shape, name = shape_of(node), layer_name(node)
    sources = node.all_input_nodes
    if shape is None or any(len(shape_of(source) or ()) != 4 for source in sources):
        return None
    common: dict[str, Any] = {"name": name, "inputs": tuple(number(source) for source in sources), "output": number(node)}
    module = module_of(node, graph)
    if module is not None:
        return None if has_hooks(module) else _of_module(module, common)
    if len(shape) == 4 and is_sum(node):
        # x + x has one input node, x + 1 as well: the engine adds two tensors of one shape only
        alike = len(sources) == 2 and shape_of(sources[0]) == shape_of(sources[1]) == shape
        return SumStep(**common) if alike else None
    if calls(node, RELUS) and len(sources) == 1:
        return SumStep(**common, low=0.0)
    if node.target in JOINS and _axis(node, 1) in (1, -3) and isinstance(node.args[0], list | tuple):
        inputs = tuple(number(source) for source in node.args[0] if isinstance(source, fx.Node))
        return ConcatStep(**common | {"inputs": inputs})
    if _mean_of_pixels(node):
        return MeanStep(**common)
    if node.target in MODULES and node.args:  # the module says what the further arguments mean
        return _of_module(MODULES[node.target](*node.args[1:], **node.kwargs), common)
    return None


def _of_module(module: nn.Module, common: dict[str, Any]) -> Step | None:
    if isinstance(module, nn.Conv2d):
        return None if why_not(module) else _convolution(module, common)
    if isinstance(module, nn.ReLU):
        return SumStep(**common, low=0.0)
    if isinstance(module, nn.Hardtanh):  # ReLU6 too
        return SumStep(**common, low=float(module.min_val), high=float(module.max_val))
    if isinstance(module, nn.MaxPool2d | nn.AvgPool2d):
        return _pool(module, common)
    if isinstance(module, nn.AdaptiveAvgPool2d) and module.output_size in (1, (1, 1), [1, 1]):
        return MeanStep(**common)
    if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.num_features > 1:
        scale, shift = scale_and_shift(module)
        weight = scale.float().view(-1, 1, 1, 1)
        return ConvolutionStep(**common, weight=weight, bias=shift.float(), **_UNIT, groups=len(weight))
    return None


_UNIT: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}


def why_not(layer: nn.Conv1d | nn.Conv2d) -> str | None:
    """Why the engine has no step for a convolution; None if it has one."""
    if not is_convolution(layer):
        return f"{type(layer).__name__} computes in its own way, or has hooks"
    if layer.padding_mode != "zeros":
        return f"padding_mode={layer.padding_mode!r} has no kernel"
    if layer.weight.dtype != torch.float32:
        return f"{layer.weight.dtype} has no kernel"
    if len(set(layer.stride)) > 1:
        return f"unequal strides {layer.stride} have no kernel"
    if layer.padding == "same" and any(extra % 2 for extra in _spread(layer)):
        return 'padding="same" with more on one side has no kernel'
    return None


def _spread(layer: nn.Conv1d | nn.Conv2d) -> list[int]:
    return [dilation * (size - 1) for dilation, size in zip(layer.dilation, layer.kernel_size, strict=True)]


def _convolution(module: nn.Conv2d, common: dict[str, Any]) -> Step:
    padding = module.padding
    if isinstance(padding, str):
        spread = _spread(module)
        padding = (spread[0] // 2, spread[1] // 2) if padding == "same" else (0, 0)
    settings: dict[str, Any] = {"stride": pair(module.stride), "padding": pair(padding), "dilation": pair(module.dilation)}
    bias = None if module.bias is None else module.bias.detach()
    settings |= {"groups": module.groups, "origin": origin_of(module)}
    return ConvolutionStep(**common, weight=module.weight.detach(), bias=bias, **settings)


def _pool(module: nn.MaxPool2d | nn.AvgPool2d, common: dict[str, Any]) -> Step | None:
    padding = pair(module.padding)
    largest = isinstance(module, nn.MaxPool2d)
    plain = not module.ceil_mode
    if isinstance(module, nn.MaxPool2d):
        plain = plain and not module.return_indices and pair(module.dilation) == (1, 1)
    else:
        plain = plain and module.divisor_override is None and (module.count_include_pad or padding == (0, 0))
    stride = module.kernel_size if module.stride is None else module.stride
    pool = PoolStep(**common, largest=largest, kernel=pair(module.kernel_size), stride=pair(stride), padding=padding)
    return pool if plain else None


def _axis(node: fx.Node, place: int) -> object:
    return node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)


def _mean_of_pixels(node: fx.Node) -> bool:
    axes = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return node.target in ("mean", torch.mean) and isinstance(axes, list | tuple) and sorted(a % 4 for a in axes) == [2, 3]


def _one_batch(region: GraphRegion) -> bool:
    """Whether all inputs have as many samples: the engine takes them together."""
    return len({shape[0] for shape in map(shape_of, region.inputs) if shape is not None}) == 1


@dataclass(frozen=True)
class GraphRegion:
    """A region with its place in a graph: the nodes that it replaces, those it reads, and those that others read."""

    region: Region
    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    values: dict[int, fx.Node]  # by the region's numbers


def find_regions(
    graph: fx.GraphModule, reasons: dict[str, str] | None = None, apart: Callable[[Step], bool] = lambda step: False
) -> list[GraphRegion]:
    """Runs of neighbouring nodes that the engine can compute, with at least one convolution in each.

    Why a layer has no place in any goes into `reasons`. Steps for which `apart` is true are in regions of their own.
    """
    reasons = {} if reasons is None else reasons
    numbers: dict[fx.Node, int] = {}

    def number(node: fx.Node) -> int:
        return numbers.setdefault(node, len(numbers))

    runs: list[list[tuple[fx.Node, Step]]] = [[]]
    sizes: dict[int, Extent] = {}
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            continue
        step = step_for(node, graph, number)
        if step is not None and runs[-1] and apart(step) != apart(runs[-1][-1][1]):
            runs.append([])
            sizes = {}
        if step is None or not _extend(step, node, number, sizes, {}):
            runs.append([])
            sizes = {}
            # a node that did not fit behind the run may begin the next one
            if step is None or not _extend(step, node, number, sizes, reasons):
                continue
        runs[-1].append((node, step))
    regions = [_region(run, number) for run in runs]
    return [region for region in regions if _worth_while(region.region) and _one_batch(region)]


def _worth_while(region: Region) -> bool:
    """Whether there is a convolution; a norm alone, which is a depthwise one of single pixels, is none."""
    return any(isinstance(step, ConvolutionStep) and not (step.depthwise and step.kernel == (1, 1)) for step in region.steps)


def _extend(
    step: Step, node: fx.Node, number: Callable[[fx.Node], int], sizes: dict[int, Extent], reasons: dict[str, str]
) -> bool:
    """Add a step's extent to `sizes` if its inputs lie where the engine can read them."""
    trial = dict(sizes)
    for source in node.all_input_nodes:
        shape = shape_of(source)
        # a parameter added to every sample has no batch of its own
        if shape is None or len(shape) != 4 or source.op == "get_attr":
            return False
        trial.setdefault(number(source), Extent(shape[1], (shape[2], shape[3]), (shape[2], shape[3])))
    if any(trial[value].grid == LEFT for value in step.inputs):
        return False
    try:
        extent = extent_after(step, [trial[value] for value in step.inputs])
    except NotOnGridError as error:
        reasons[step.name] = f"the engine's layout cannot hold it: {error}"
        return False
    sizes.update(trial)
    sizes[step.output] = Extent(extent.channels, (1, 1), LEFT) if isinstance(step, MeanStep) else extent
    return True


def _region(run: list[tuple[fx.Node, Step]], number: Callable[[fx.Node], int]) -> GraphRegion:
    nodes = [node for node, _ in run]
    inside = set(nodes)
    inputs = list(dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in inside))
    outputs = [node for node in nodes if any(user not in inside for user in node.users)]
    region = Region(tuple(step for _, step in run), tuple(map(number, inputs)), tuple(map(number, outputs)))
    values = {number(node): node for node in (*inputs, *nodes)}
    return GraphRegion(region, tuple(nodes), tuple(inputs), tuple(outputs), values)
