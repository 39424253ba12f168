"""What is asked of every cell. A check gives its remark ("" if there is nothing to say) or raises."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

import autosparse
from autosparse.export.onnx import onnx_program

from .member import Member, Task, tensors_of
from .run import EPOCHS, STEPS, TARGET, Run

LAST = EPOCHS * STEPS
MISS = 0.005  # half a point
SAVED_AT, COMPARED_AT = 30, 40  # steps: while the sparsity still rises
ROUNDING = 1e-4  # of a gradient's norm, in float32
# A weight moved by this part of itself moves gradients as much as other roundings may: a ReLU near 0 switches its sign.
NUDGE = 1e-6
OUTPUTS = 1e-3
# Gradients whose norm is below this part of the largest are compared with that: a few are 0 in theory, and all rounding.
SMALL = {"float32": 1e-3, "bfloat16": 1e-1}


def fingerprint(run: Run) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in run.model.state_dict().items()}


def reaches_target(run: Run, losses: list[float]) -> str:
    assert run.sp.step == LAST
    return assert_target(run.sp.sparsity(), losses)


def assert_target(sparsity: float, losses: list[float]) -> str:
    assert abs(sparsity - TARGET) <= MISS, f"{sparsity:.2%} zeros, not {TARGET:.0%}"
    assert losses[-1] < losses[0], f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}"
    return ""


def class_and_keys(member: Member) -> tuple[type[nn.Module], list[str]]:
    """Of the plain model."""
    plain = member.build().model
    return type(plain), list(plain.state_dict())


def resumes_exactly(expected: dict[str, Tensor], losses: list[float], resumed: Run, checkpoint: bytes) -> str:
    resumed.resume(checkpoint)
    again, expected_losses = resumed.advance(COMPARED_AT), losses[SAVED_AT:COMPARED_AT]
    assert again == expected_losses, f"the losses after resuming are {again} instead of {expected_losses}"
    differing = [name for name, value in fingerprint(resumed).items() if not _same(value, expected[name])]
    assert not differing, f"{len(differing)} tensors differ after resuming, {differing[0]} first"
    return ""


def _same(left: Tensor, right: Tensor) -> bool:
    return torch.equal(left.nan_to_num(), right.nan_to_num())


def equals_dense(run: Run) -> str:
    """Gradients of one step as layers run now, with every kernel that fits, and densely."""
    buffers = {name: value.clone() for name, value in run.model.named_buffers()}
    present = _gradients(run, buffers)
    run.sp.compute("dense")
    dense = _gradients(run, buffers)
    allowed = _distance_of_rounding(run, buffers, dense)
    distances = {"as planned": _distance(run, present, dense)}
    try:
        run.sp.compute("sparse")
    except RuntimeError as error:
        if "nothing can run sparse" not in str(error):
            raise
    else:
        distances["all kernels"] = _distance(run, _gradients(run, buffers), dense)
    run.sp.compute("dense")
    _put_back(run.model, buffers)
    wrong = [f"{how}: {value:.1e}" for how, value in distances.items() if not value <= allowed]
    assert not wrong, f"gradients differ from dense compute by more than {allowed:.1e} of their norm: {', '.join(wrong)}"
    return ", ".join(f"{how} {value:.0e}" for how, value in distances.items())


def _distance_of_rounding(run: Run, buffers: dict[str, Tensor], dense: dict[str, Tensor]) -> float:
    """How far torch's own gradients move by rounding: from bfloat16 to float32, or when weights are nudged."""
    if run.precision == "bfloat16":
        run.precision = "float32"
        exact = _gradients(run, buffers)
        run.precision = "bfloat16"
        return 2 * _distance(run, exact, dense)
    before = {name: value.detach().clone() for name, value in run.model.named_parameters()}
    for value in run.model.parameters():
        value.data.mul_(1 + NUDGE * torch.randn_like(value))
    nudged = _gradients(run, buffers)
    for name, value in run.model.named_parameters():
        value.data.copy_(before[name])
    return max(ROUNDING, 2 * _distance(run, nudged, dense))


def _gradients(run: Run, buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    _put_back(run.model, buffers)
    torch.manual_seed(7)
    run.optimizer.zero_grad()
    loss = run.loss()
    loss.backward()
    gradients = {name: value.grad.clone() for name, value in run.model.named_parameters() if value.grad is not None}
    return gradients


def _put_back(model: nn.Module, buffers: dict[str, Tensor]) -> None:
    for name, value in model.named_buffers():
        value.copy_(buffers[name])


def _distance(run: Run, left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """The worst of all parameters: the distance over the gradient's norm, or over a part of the largest norm."""
    assert left.keys() == right.keys(), f"gradients of other parameters: {sorted(left.keys() ^ right.keys())[:3]}"
    norms = {name: float(value.double().norm()) for name, value in right.items()}
    least = SMALL[run.precision] * max(*norms.values(), 1e-12)  # all are 0 at a loss of 0
    return max(float((left[name].double() - right[name].double()).norm()) / max(least, norms[name]) for name in left)


def finalizes(run: Run, kind: type[nn.Module], keys: list[str]) -> str:
    """To the user's class and keys, with the zeros and the outputs of the sparsified model."""
    run.sp.compute("dense")
    expected, zeros = outputs(run.model, run.task), run.sp.report()
    model = run.sp.finalize()
    assert type(model) is kind, f"{type(model).__name__} instead of {kind.__name__}"
    assert list(model.state_dict()) == keys, "the keys of the state differ from the plain model's"
    weights = {layer.name: layer.zeros for layer in zeros.layers}
    assert sum(weights.values()) == sum(int((model.get_parameter(_key(model, name)) == 0).sum()) for name in weights)
    assert_close(outputs(model, run.task), expected, "the plain model")
    return ""


def _key(model: nn.Module, name: str) -> str:
    names = dict(model.named_parameters(remove_duplicate=False))
    return name if name in names else f"{name}.weight"


def deploys(model: nn.Module, task: Task) -> str:
    plain = outputs(model, task)
    deployed = autosparse.deploy(model, _example(task))
    with torch.no_grad():
        served = tensors_of(deployed(*task.inputs, **task.named))
    assert_close(served, plain, "the deployed model")
    return "; ".join(deployed.notes)


def _example(task: Task) -> Any:
    return {**task.named} if task.named and not task.inputs else task.inputs


def exports(model: nn.Module, task: Task, plain: Task, path: str) -> str:
    """To ONNX, unless torch cannot export the plain model either; compared with onnxruntime."""
    try:
        program = onnx_program(model.eval(), task.inputs, kwargs=task.named or None)
    except Exception as error:
        if _can_export(plain):
            raise AssertionError(f"only the plain model can be exported: {_short(error)}") from error
        return f"torch itself cannot export it: {_short(error)}"
    program.save(path, external_data=False)
    return _compare_onnx(path, model, task)


def _can_export(plain: Task) -> bool:
    try:
        onnx_program(plain.model.eval(), plain.inputs, kwargs=plain.named or None)
    except Exception:
        return False
    return True


def _compare_onnx(path: str, model: nn.Module, task: Task) -> str:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return f"onnxruntime cannot load what torch exports: {_short(error)}"
    given = [value for value in (*task.inputs, *task.named.values()) if isinstance(value, Tensor)]
    feed = {entry.name: value.numpy() for entry, value in zip(session.get_inputs(), given, strict=True)}
    results = [torch.from_numpy(value) for value in session.run(None, feed)]
    assert_close([value for value in results if value.is_floating_point()], outputs(model, task), "onnxruntime")
    return ""


def outputs(model: nn.Module, task: Task) -> list[Tensor]:
    was_training = model.training
    model.eval()
    with torch.no_grad():
        result = tensors_of(model(*task.inputs, **task.named))
    model.train(was_training)
    return result


def assert_close(given: list[Tensor], expected: list[Tensor], who: str) -> None:
    assert len(given) == len(expected), f"{who} gives {len(given)} tensors instead of {len(expected)}"
    for left, right in zip(given, expected, strict=True):
        assert left.shape == right.shape, f"{who} gives {tuple(left.shape)} instead of {tuple(right.shape)}"
        scale = float(right.abs().max().clamp_min(1e-12))
        difference = float((left - right).abs().max()) / scale
        assert difference <= OUTPUTS, f"{who}'s outputs differ by {difference:.1e} of the largest"


def _short(error: BaseException) -> str:
    """The first line of what was wrong in the first place."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in re.sub(r"\x1b\[\d*m", "", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


def kernels_in_use(run: Run) -> dict[str, int]:
    """How many passes ran on sparse kernels and how many batch norms were fused at the end of training."""
    from autosparse.compute.fused_forward import count_fused

    passes = sum(len(plan.passes) for plan in run.sp.layer_plans())
    return {"passes": passes, "fused": count_fused(run.model)}
