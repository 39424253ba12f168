"""Which layer a product counts under: functional use, hidden weights, activations, shared and first layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.cost import Profile, profile


def macs(counted: Profile) -> dict[str, int]:
    return {layer.name: layer.macs for layer in counted.layers}


class Functional(nn.Module):
    """Parameters used without a module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.rand(6, 4))
        self.filter = nn.Parameter(torch.rand(4, 4, 3))
        self.inner = nn.Linear(4, 4)
        self.register_buffer("mask", torch.ones(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = x @ (self.kernel * self.mask)
        x = F.conv1d(x.mT, self.filter, padding=1).mT
        x = F.linear(x, self.inner.weight.to(torch.float32))
        return torch.addmm(x[0], x[0], self.kernel[:4].t())


def test_functional_use_counts_under_the_parameters_name() -> None:
    counted = profile(Functional(), torch.rand(1, 5, 6))
    assert macs(counted) == {"kernel": 5 * 24 + 5 * 16, "filter": 5 * 3 * 16, "inner": 5 * 16}
    assert {layer.name: layer.kind for layer in counted.layers} == {
        "kernel": "linear",
        "filter": "conv1d",
        "inner": "linear",
    }
    assert {layer.name: layer.params for layer in counted.layers} == {"kernel": 24, "filter": 48, "inner": 16}


class SelfMade(torch.autograd.Function):
    """An effective weight that torch functions do not show."""

    @staticmethod
    def forward(ctx: object, weight: Tensor) -> Tensor:
        return weight.clone()


def test_hidden_effective_weight_counts_under_the_weight_of_its_shape() -> None:
    class Masked(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, SelfMade.apply(self.weight), self.bias)

    assert macs(profile(nn.Sequential(Masked(3, 4)), torch.rand(2, 3))) == {"0": 12}


def test_layer_whose_operator_is_unknown_counts_by_its_module() -> None:
    class Loop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor, weight: Tensor) -> Tensor:
            return x @ weight.t()

    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.Flatten(), nn.Linear(12, 5))
    linear, convolution = model[2], model[0]
    linear.forward = lambda x: Loop.apply(x, linear.weight)
    convolution.forward = lambda x: Loop.apply(x.mT, convolution.weight[..., 0]).mT
    counted = profile(model, torch.rand(2, 2, 4))
    assert macs(counted) == {"0": 4 * 6, "2": 60}
    assert [layer.first for layer in counted.layers] == [True, False]


class Products(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if self.kind == "matmul":
            return a @ b.mT
        if self.kind == "bmm":
            return torch.bmm(a, b.mT)
        if self.kind == "baddbmm":
            return torch.baddbmm(torch.zeros(()), a, b.mT)
        if self.kind == "einsum":
            return torch.einsum("b i k, b j k -> b i j", a, b)
        if self.kind == "einsum ellipsis":
            return torch.einsum("...ik,...jk", a, b)
        return F.scaled_dot_product_attention(a, b, b)


@pytest.mark.parametrize("kind", ["matmul", "bmm", "baddbmm", "einsum", "einsum ellipsis", "attention"])
def test_products_of_activations_are_layers_of_their_module(kind: str) -> None:
    model = nn.ModuleDict({"mix": Products(kind)})
    model.forward = lambda a, b: model["mix"](a, b)
    (layer,) = profile(model, (torch.rand(2, 5, 4), torch.rand(2, 6, 4))).layers
    assert (layer.name, layer.params, layer.shape) == ("mix.products", 0, None)
    assert layer.kind == ("attention" if kind == "attention" else "matmul")
    assert layer.macs == 5 * 6 * 4 * (2 if kind == "attention" else 1)


def test_einsum_of_three_operands_and_tensordot_with_a_parameter() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Parameter(torch.rand(4, 3))
            self.right = nn.Parameter(torch.rand(3, 5))
            self.last = nn.Parameter(torch.rand(2, 5, 6))

        def forward(self, x: Tensor) -> Tensor:
            x = torch.einsum("bti,ij,jk->btk", x, self.left, self.right)
            x = x * torch.einsum("bti,bti->bti", x, x)
            return torch.tensordot(x, self.last, dims=([1, 2], [0, 1]))

    # the middle operand pair (left, right) is counted under the parameter that enters
    counted = profile(Net(), torch.rand(3, 2, 4))
    assert macs(counted) == {"left": 2 * 4 * 3, "right": 2 * 3 * 5, "last": 60}


def test_module_called_twice_counts_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Linear(4, 4)
            self.alias = self.shared

        def forward(self, x: Tensor) -> Tensor:
            return self.alias(self.shared(x))

    (layer,) = profile(Twice(), torch.rand(2, 4)).layers
    assert (layer.name, layer.params, layer.macs, layer.first) == ("shared", 16, 32, False)


def test_tied_head_is_listed_and_its_parameters_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 4)
            self.middle = nn.Linear(4, 4, bias=False)
            self.again = nn.Linear(4, 4, bias=False)
            self.head = nn.Linear(4, 10, bias=False)
            self.again.weight = self.middle.weight
            self.head.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.again(self.middle(self.embedding(tokens))))

    counted = profile(Tied(), torch.zeros(2, 3, dtype=torch.long))
    assert macs(counted) == {"middle": 48, "again": 48, "head": 120}
    assert counted.params == 16 + 40
    assert {layer.name: layer.tied_to for layer in counted.layers} == {
        "middle": None,
        "again": "middle",
        "head": "embedding",
    }
    assert not any(layer.first for layer in counted.layers)
    assert [counted.macs_of(name) for name in ("embedding", "middle", "again", "other")] == [120, 96, 48, 0]
    assert counted.inference_fraction({"embedding": 0.5, "middle": 0.0}) == pytest.approx(60 / 216)


def test_first_means_reached_by_data_before_any_parameter() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(12, 4), nn.Linear(12, 4), nn.Linear(8, 2)
            self.normed, self.norm = nn.Linear(12, 4), nn.LayerNorm(12)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1) / 255
            return self.c(torch.cat([self.a(x) + self.normed(self.norm(x)), self.b(x)], 1))

    assert {layer.name: layer.first for layer in profile(Net(), torch.rand(2, 3, 4)).layers} == {
        "a": True,
        "normed": False,
        "b": True,
        "c": False,
    }
