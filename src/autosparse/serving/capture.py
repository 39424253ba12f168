"""A model as a graph of torch operations (torch.fx), or the reason why it cannot be one."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.utils import _pytree as pytree

from autosparse.common.graphs import ADDS, calls
from autosparse.common.warnings import warn
from autosparse.serving.example import Example
from autosparse.serving.kinds import has_hooks, is_convolution, is_linear
from autosparse.serving.signature import CannotCaptureError, Signature, signature_of


class Captured(nn.Module):
    """A graph that is called as its model is; the model itself answers for its attributes, and calls unlike the example's."""

    graph: fx.GraphModule
    plain: nn.Module

    def __init__(
        self, graph: fx.GraphModule, name: str, plain: nn.Module, signature: Signature, result: pytree.TreeSpec
    ) -> None:
        super().__init__()
        self.graph = graph
        # not registered: its layers are those that the graph has replaced
        self.__dict__.update(plain=plain, name=name, signature=signature, result=result, warned=False, forgotten=False)
        self.eval()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        tensors = self.signature.tensors(inputs, named)
        if tensors is None:
            return self._plainly(inputs, named)
        results = self.graph(*tensors)
        return results[0] if self.result.is_leaf() else pytree.tree_unflatten(results, self.result)

    def _plainly(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self.__dict__["forgotten"]:
            raise ValueError(
                f"{self.name} is called unlike deploy's example, and in int8 it keeps no float32 weights: "
                "deploy with an example like this call"
            )
        result = self.plain(*inputs, **named)  # or the model's own error
        if not self.__dict__["warned"]:
            self.__dict__["warned"] = True
            warn(f"{self.name} is called unlike deploy's example and computes in torch: deploy with an example like this call")
        return result

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["plain"], name)


class _Tracer(fx.Tracer):
    """Tensors become placeholders; everything else keeps the example's value."""

    def __init__(self, signature: Signature) -> None:
        super().__init__()
        self.signature = signature
        self.result: pytree.TreeSpec | None = None

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        count = len(self.signature.tensor_places)
        proxies = [self.create_proxy("placeholder", f"input_{place}", (), {}) for place in range(count)]
        args, named = self.signature.call(proxies)

        def run(root: nn.Module) -> list[Any]:
            leaves, self.result = pytree.tree_flatten(root_fn(root, *args, **named))
            return leaves

        run.__annotations__.clear()  # torch would write them into the graph's code
        return run, [self.root]

    def looks_past_hooks(self, module: nn.Module, name: str) -> bool:
        """Whether hooks would run once, while capturing, and never again."""
        return has_hooks(module) and (not name or not self.is_leaf_module(module, name))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_linear(m) or is_convolution(m) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module, example: Example) -> tuple[fx.GraphModule, Signature, pytree.TreeSpec]:
    """The graph of a call like the example's with the shape of every value; the model itself is left as it is."""
    signature = signature_of(model, example)
    tracer = _Tracer(signature)
    if "forward" in vars(model) or any(tracer.looks_past_hooks(part, name) for name, part in model.named_modules()):
        raise CannotCaptureError("a forward in it is changed, or watched by hooks")
    try:
        traced = fx.GraphModule(model, tracer.trace(model))
    except Exception as error:  # whatever the model's own code raises on a stand-in for a tensor
        raise CannotCaptureError(one_line(error)) from error
    assert tracer.result is not None
    return traced, signature, tracer.result


def with_shapes(traced: fx.GraphModule, tensors: list[Tensor]) -> fx.GraphModule:
    """Run the graph once so that every node knows the shape of its value."""
    try:
        with torch.no_grad():
            ShapeProp(traced).propagate(*(tensor.clone() for tensor in tensors))
    except Exception as error:
        raise CannotCaptureError(one_line(error)) from error
    return traced


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """The shape of a node's float32 tensor; None for anything else."""
    meta: Any = node.meta.get("tensor_meta")
    return tuple(meta.shape) if getattr(meta, "dtype", None) == torch.float32 else None


def module_of(node: fx.Node, graph: fx.GraphModule) -> nn.Module | None:
    """The module that a node calls."""
    return graph.get_submodule(str(node.target)) if node.op == "call_module" else None


def layer_name(node: fx.Node) -> str:
    """The name in the user's model of the layer that a node calls."""
    return str(node.meta.get("layer", node.target))


def is_sum(node: fx.Node) -> bool:
    """Whether a node adds two things, in place or not."""
    return calls(node, ADDS | {operator.iadd}) and len(node.args) == 2 and not node.kwargs


def one_line(error: BaseException) -> str:
    """An error inside a sentence."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
