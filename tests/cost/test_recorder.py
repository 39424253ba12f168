"""The recorder sees the user's first eager forward pass and leaves no trace."""

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from autosparse.cost import Recorder, profile


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 2))


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_first_forward_gives_the_profile_and_removes_the_hooks() -> None:
    model, x = net().train(), torch.rand(4, 3, 5, 5)
    recorder = Recorder(model)
    assert recorder.profile is None
    expected = copy.deepcopy(model)
    loss = model(x).sum()
    loss.backward()
    assert hooks(model) == 0
    assert recorder.profile == profile(model, x[:1])
    expected(x).sum().backward()
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(parameter.grad, other.grad)
    assert torch.equal(model[1].running_mean, expected[1].running_mean)


def test_failed_forward_leaves_the_recorder_waiting() -> None:
    model = net()
    recorder = Recorder(model)
    with pytest.raises(RuntimeError):
        model(torch.rand(1, 3, 9, 9))
    assert recorder.profile is None
    assert not torch.overrides._is_torch_function_mode_enabled()
    assert hooks(model) == 2
    model(torch.rand(1, 3, 5, 5))
    assert recorder.profile is not None


def test_forward_inside_an_except_block_counts() -> None:
    model = net().eval()
    recorder = Recorder(model)
    try:
        raise KeyError("elsewhere")
    except KeyError:
        model(torch.rand(1, 3, 5, 5))
    assert recorder.profile is not None


def test_interrupted_forward_is_thrown_away() -> None:
    class Interrupted(nn.Linear):
        fails = True

        def forward(self, x: Tensor) -> Tensor:
            if self.fails:
                raise KeyboardInterrupt
            return super().forward(x)

    model = nn.Sequential(nn.Linear(3, 4), Interrupted(4, 5))
    recorder = Recorder(model)
    with pytest.raises(KeyboardInterrupt):
        model(torch.rand(2, 3))
    model[1].fails = False
    model(torch.rand(2, 3))
    assert not torch.overrides._is_torch_function_mode_enabled()
    assert hooks(model) == 0
    assert recorder.profile == profile(model, torch.rand(2, 3))


def test_close_and_context() -> None:
    model = net()
    with Recorder(model) as recorder:
        assert hooks(model) == 2
    assert hooks(model) == 0
    model(torch.rand(2, 3, 5, 5))
    assert recorder.profile is None


def test_pending_recorder_survives_deepcopy_pickle_and_profile() -> None:
    model, x = net().eval(), torch.rand(2, 3, 5, 5)
    recorder = Recorder(model)
    twin = copy.deepcopy(model)
    loaded = pickle.loads(pickle.dumps(model))
    torch.save(model, io.BytesIO())
    for each in (twin, loaded):
        each(x)
        assert hooks(each) == 0
    assert recorder.profile is None
    assert hooks(model) == 2
    assert profile(model, x) == recorder.profile
    assert hooks(model) == 0
    assert not torch.overrides._is_torch_function_mode_enabled()


def test_finished_recorder_can_be_copied() -> None:
    model = net()
    recorder = Recorder(model)
    model(torch.rand(2, 3, 5, 5))
    assert copy.deepcopy(recorder).profile == recorder.profile


def test_recorder_waits_while_compiled_and_counts_the_first_eager_forward() -> None:
    model, x = net().eval(), torch.rand(2, 3, 5, 5)
    expected = model(x)
    recorder = Recorder(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    assert recorder.profile is None
    model(x)
    assert recorder.profile == profile(model, x)
    torch.testing.assert_close(compiled(x), expected)


def test_recorder_waits_while_a_part_is_compiled() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * 2

    model, x = net().append(Part()).eval(), torch.rand(2, 3, 5, 5)
    recorder = Recorder(model)
    model[4].compile(backend="eager", fullgraph=True)
    model(x)
    assert recorder.profile is None
    assert profile(model, x).macs == 9 * 27 * 4 + 72 + 4


def test_recorder_is_silent_in_export_and_tracing() -> None:
    model, x = net().eval(), torch.rand(2, 3, 5, 5)
    expected = model(x)
    recorder = Recorder(model)
    for strict in (True, False):
        torch.testing.assert_close(torch.export.export(model, (x,), strict=strict).module()(x), expected)
    torch.testing.assert_close(torch.jit.trace(model, (x,), check_trace=False)(x), expected)
    assert recorder.profile is None


def test_compiled_function_inside_an_eager_forward() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def activation(x: Tensor) -> Tensor:
        return torch.relu(x) * 2

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(activation(self.a(x)))

    model = Net()
    recorder = Recorder(model)
    model(torch.rand(2, 3))
    assert recorder.profile is not None
    assert [(layer.name, layer.macs) for layer in recorder.profile.layers] == [("a", 12), ("b", 20)]


def test_checkpointing_and_autocast_count_once() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(lambda each: self.b(self.a(each)), x, use_reentrant=False)

    model = Net()
    recorder = Recorder(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.rand(2, 3)).float().sum()
    loss.backward()
    assert recorder.profile is not None
    assert [(layer.name, layer.macs) for layer in recorder.profile.layers] == [("a", 12), ("b", 20)]


def test_input_that_needs_a_gradient_makes_no_first_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    recorder = Recorder(model)
    model(torch.rand(2, 3, requires_grad=True))
    assert recorder.profile is not None
    assert not recorder.profile.layers[0].first


def test_empty_batch_is_passed_over() -> None:
    model = nn.Linear(3, 4)
    recorder = Recorder(model)
    model(torch.rand(0, 3))
    assert recorder.profile is None
    model(torch.rand(6, 3))
    assert recorder.profile is not None
    assert recorder.profile.macs == 12
