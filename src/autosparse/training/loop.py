"""The training loop, from top to bottom."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from autosparse.models import chunked_cross_entropy
from autosparse.models.transformer import Transformer
from autosparse.training.progress import Moment
from autosparse.training.rates import learning_rate
from autosparse.training.session import Session
from autosparse.training.signals import Stopped
from autosparse.training.validate import Score, autocast, summed_loss, validate

LOOK_EVERY = 10  # steps between looks at the loss and, with several processes, at requests to stop


def fit(run: Session, epochs: int) -> None:
    """Train from where the run stands until `epochs` are done."""
    run.progress.start(f"{run.recipe.name} {run.recipe.method['name']}", epochs * run.steps, run.position.step)
    try:
        while run.position.epoch < epochs:
            train_epoch(run)
            close_epoch(run)
    except ValueError:
        run.check_finite()  # the guard and the ledger refuse numbers that are none, each in its own words
        raise
    finally:
        run.progress.stop()


def train_epoch(run: Session) -> None:
    """The batches of one epoch that are still to come."""
    position = run.position
    run.runner.train()
    for inputs, target in run.data.train.epoch(position.epoch, skip=position.batch):
        set_rate(run)
        run.loss_sum += train_step(run, tuple(each.to(run.device) for each in inputs), target.to(run.device))
        position.batch += 1
        position.step += 1
        look = position.step % LOOK_EVERY == 0
        if look:
            run.check_loss()
            run.progress.update(moment(run))
        if (look or run.processes.world == 1) and run.processes.any(bool(run.stop), run.device):
            run.save()
            raise Stopped(f"stopped at epoch {position.epoch + 1}, step {position.step}, and saved", run.stop.code)
        if look and run.processes.any(run.save_due, run.device):
            run.save()


def train_step(run: Session, inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
    """One optimizer step on one batch, in `accumulate` parts; returns its mean loss without the method's penalty."""
    settings = run.recipe.train
    count = run.targets_a_rank(target)
    run.optimizer.zero_grad()
    total = torch.zeros_like(run.loss_sum)
    parts = split(inputs, target, settings.accumulate)
    for number, (part, wanted) in enumerate(parts, start=1):
        with reduce_gradients(run, last=number == len(parts)):
            loss = part_loss(run, part, wanted) / count
            total += loss.detach()
            if number == len(parts) and run.sp is not None:
                loss = loss + run.sp.penalty()
            loss.backward()  # type: ignore[no-untyped-call]
    if settings.clip is not None:
        torch.nn.utils.clip_grad_norm_(run.weights, settings.clip)
    run.optimizer.step()
    return total


def part_loss(run: Session, inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
    """The loss summed over targets; a translation model on the CPU makes it by chunks of tokens, in less memory and time."""
    settings, padding = run.recipe.train, run.data.padding_id
    smoothing = settings.label_smoothing
    with autocast(run.device, settings.precision):
        alone = run.runner is run.model and not run.sharded and run.device.type == "cpu"
        if alone and isinstance(run.model, Transformer) and padding is not None:
            states, layer = run.model.states(*inputs), run.model.output
            return chunked_cross_entropy(
                states, layer, target, ignore_index=padding, label_smoothing=smoothing, reduction="sum"
            )
        output = run.runner(*inputs)
    return summed_loss(output, target, padding, smoothing)


def close_epoch(run: Session) -> None:
    """Validate, tell the method, write the figures, save."""
    position, finished = run.position, run.position.epoch + 1
    run.check_loss()
    loss = float(run.loss_sum) / run.steps
    rate = run.optimizer.param_groups[0]["lr"]
    alpha = run.sp.alpha if run.sp else None
    if run.sp is not None:
        run.sp.end_epoch(loss=loss)
    run.processes.share_buffers(run.model)
    score = validate(
        run.model,
        run.data.validation,
        run.device,
        padding_id=run.data.padding_id,
        precision=run.recipe.train.precision,
        processes=run.processes,
    )
    best = is_best(run, score)
    if best:
        position.best_accuracy, position.best_epoch = score.accuracy, finished
        position.best_sparsity = run.sp.sparsity() if run.sp else 0.0
    line = metrics(run, finished, run.processes_mean(loss), rate, alpha, score)
    if run.sp is not None and finished % run.stage_epochs == 0 and finished < run.recipe.train.epochs:
        run.sp.next_round(run.optimizer)
    position.epoch, position.batch = finished, 0
    run.loss_sum.zero_()
    run.record(line)
    run.progress.update(moment(run, loss, score.accuracy))
    run.save(best=best)


def set_rate(run: Session) -> None:
    """The learning rate of the coming step; every round of a method begins anew."""
    step = run.position.step % (run.stage_epochs * run.steps)
    rate = learning_rate(run.recipe.schedule, run.recipe.optimizer.lr, step, run.steps, run.stage_epochs)
    for group in run.optimizer.param_groups:
        group["lr"] = rate


def split(inputs: tuple[Tensor, ...], target: Tensor, parts: int) -> list[tuple[tuple[Tensor, ...], Tensor]]:
    """A batch in parts of nearly the same size."""
    pieces = zip(*(each.chunk(parts) for each in (*inputs, target)), strict=True)
    return [(piece[:-1], piece[-1]) for piece in pieces]


def reduce_gradients(run: Session, last: bool) -> AbstractContextManager[Any]:
    """Ranks exchange gradients with the last part of a step only."""
    if run.sharded:
        run.model.set_requires_gradient_sync(last)  # type: ignore[operator]
    elif run.processes.world > 1 and not last:
        skip: AbstractContextManager[Any] = run.runner.no_sync()  # type: ignore[operator]
        return skip
    return nullcontext()


def is_best(run: Session, score: Score) -> bool:
    """Whether this is the most accurate of the sparsest epochs; half a point of sparsity is the same sparsity."""
    if run.sp is None:
        return score.accuracy > run.position.best_accuracy
    gained = run.sp.sparsity() - run.position.best_sparsity
    return gained > 0.005 or (gained >= -0.005 and score.accuracy > run.position.best_accuracy)


def metrics(run: Session, epoch: int, loss: float, rate: float, alpha: float | None, score: Score) -> dict[str, Any]:
    """The line of an epoch in metrics.jsonl; rate and alpha are those it was trained with."""
    line: dict[str, Any] = {
        "epoch": epoch,
        "step": run.position.step,
        "loss": loss,
        "lr": rate,
        "validation_loss": score.loss,
        "accuracy": score.accuracy,
        "seconds": run.seconds,
    }
    if run.sp is not None:
        past = run.sp.history[-1]
        line |= {"alpha": alpha, **{name: past[name] for name in ("sparsity", "densities", "thresholds")}}
        line |= {"train_fraction": run.sp.cost.train_fraction, "test_fraction": run.sp.cost.test_fraction}
    return line


def moment(run: Session, loss: float | None = None, accuracy: float | None = None) -> Moment:
    """What the progress shows now; the accuracy is that of the last epoch."""
    position, past = run.position, run.sp.history if run.sp else []
    mean = float(run.loss_sum) / max(1, position.batch) if loss is None else loss
    if accuracy is not None:
        run.last_accuracy = accuracy
    return Moment(
        min(position.epoch + 1, run.recipe.train.epochs),
        run.recipe.train.epochs,
        position.step,
        run.steps,
        mean,
        run.last_accuracy,
        run.sp.alpha if run.sp else None,
        past[-1]["sparsity"] if past else None,
    )
