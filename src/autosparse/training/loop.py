"""The training loop, from top to bottom."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.common.ranks import mean_over_ranks
from autosparse.quantization.fake import is_quantization_aware
from autosparse.sparsifier.quantize_aware import attach
from autosparse.training.rates import learning_rate, retrain_share
from autosparse.training.records import is_best, metrics, moment
from autosparse.training.session import Session
from autosparse.training.signals import Stopped
from autosparse.training.validate import IGNORED, autocast, summed_loss, validate

CALIBRATION = 8  # batches that fix the ranges of the int8 epochs
CHECK_EVERY = 10  # steps between checks of the loss and, with several processes, of requests to stop


def fit(session: Session, epochs: int) -> None:
    """Train from where the run stands until `epochs` are done."""
    title = f"{session.recipe.name} {session.recipe.method['name']}"
    session.progress.start(title, epochs * session.steps, session.position.step)
    try:
        while session.position.epoch < epochs:
            begin_int8(session, epochs)
            train_epoch(session)
            close_epoch(session)
    except ValueError:
        session.check_finite()  # the guard and the ledger refuse NaN in words of their own; say what happened instead
        raise
    finally:
        session.progress.stop()


def begin_int8(session: Session, epochs: int) -> None:
    """From the first of the recipe's int8 epochs on, weights and inputs are rounded; a resumed run has them so already."""
    settings = session.recipe.train
    begins = epochs - settings.quantize_aware
    if not settings.quantize_aware or session.position.epoch < begins or is_quantization_aware(session.model):
        return
    if session.processes.world > 1:
        raise ValueError("train.quantize_aware works in one process alone: every process would find other ranges")
    batches = (inputs for inputs, _ in itertools.islice(session.data.train.epoch(session.position.epoch), CALIBRATION))

    def run(model: nn.Module, inputs: tuple[Tensor, ...]) -> object:
        return model(*(tensor.to(session.device) for tensor in inputs))

    attach(session.sp or session.model, batches, run)


def train_epoch(session: Session) -> None:
    """The batches of one epoch that are still to come."""
    position = session.position
    session.runner.train()
    for inputs, target in session.data.train.epoch(position.epoch, skip=position.batch):
        set_rate(session)
        moved = tuple(tensor.to(session.device) for tensor in inputs)
        session.loss_sum += train_step(session, moved, target.to(session.device))
        position.batch += 1
        position.step += 1
        is_check = position.step % CHECK_EVERY == 0
        if is_check:
            session.check_loss()
            session.progress.update(moment(session))
        if (is_check or session.processes.world == 1) and session.processes.any(bool(session.stop), session.device):
            session.save()
            raise Stopped(f"stopped at epoch {position.epoch + 1}, step {position.step}, and saved", session.stop.code)
        if is_check and session.processes.any(session.save_due, session.device):
            session.save()


def train_step(session: Session, inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
    """One optimizer step on one batch, in `accumulate` parts; returns its mean loss without the method's penalty."""
    settings = session.recipe.train
    count = session.targets_per_rank(target)
    session.optimizer.zero_grad()
    total = torch.zeros_like(session.loss_sum)
    parts = split(inputs, target, settings.accumulate)
    for number, (part, part_target) in enumerate(parts, start=1):
        with reduce_gradients(session, last=number == len(parts)):
            loss = part_loss(session, part, part_target) / count
            total += loss.detach()
            if number == len(parts) and session.sp is not None:
                loss = loss + session.sp.penalty()
            loss.backward()  # type: ignore[no-untyped-call]
    if settings.clip is not None:
        torch.nn.utils.clip_grad_norm_(session.weights, settings.clip)
    session.optimizer.step()
    return total


def part_loss(session: Session, inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
    """The loss summed over targets; a model that has a `chunked_loss` makes it itself where it trains alone on the CPU."""
    settings, padding = session.recipe.train, session.data.padding_id
    chunked = getattr(session.model, "chunked_loss", None)
    alone = session.runner is session.model and not session.sharded and session.device.type == "cpu"
    with autocast(session.device, settings.precision):
        if chunked is not None and alone:
            ignored = IGNORED if padding is None else padding
            options = {"ignore_index": ignored, "label_smoothing": settings.label_smoothing, "reduction": "sum"}
            loss: Tensor = chunked(*inputs, target, **options)
            return loss
        output = session.runner(*inputs)
    return summed_loss(output, target, padding, settings.label_smoothing)


def close_epoch(session: Session) -> None:
    """Validate, end the method's epoch, write the figures, save."""
    position, finished = session.position, session.position.epoch + 1
    session.check_loss()
    loss = float(session.loss_sum) / session.steps
    rate = session.optimizer.param_groups[0]["lr"]
    alpha = session.sp.alpha if session.sp else None
    if session.sp is not None:
        session.sp.end_epoch(loss=loss)
    session.processes.share_buffers(session.model)
    score = validate(
        session.model,
        session.data.validation,
        session.device,
        padding_id=session.data.padding_id,
        precision=session.recipe.train.precision,
        processes=session.processes,
    )
    best = is_best(session, score)
    if best:
        position.best_accuracy, position.best_epoch = score.accuracy, finished
        position.best_sparsity = session.sp.sparsity() if session.sp else 0.0
    line = metrics(session, finished, mean_over_ranks(loss, session.device), rate, alpha, score)
    if session.sp is not None and finished % session.stage_epochs == 0 and finished < session.recipe.train.epochs:
        session.sp.next_round(session.optimizer)
    position.epoch, position.batch = finished, 0
    session.loss_sum.zero_()
    session.record(line)
    session.progress.update(moment(session, loss, score.accuracy))
    session.save(best=best)


def set_rate(session: Session) -> None:
    """The learning rate of the coming step; every round begins the schedule anew, at the share that retraining takes."""
    schedule, round_steps = session.recipe.schedule, session.stage_epochs * session.steps
    peak = session.recipe.optimizer.lr * retrain_share(schedule, session.method, session.position.step, round_steps)
    rate = learning_rate(schedule, peak, session.position.step % round_steps, session.steps, session.stage_epochs)
    for group in session.optimizer.param_groups:
        group["lr"] = rate


def split(inputs: tuple[Tensor, ...], target: Tensor, parts: int) -> list[tuple[tuple[Tensor, ...], Tensor]]:
    """A batch in parts of nearly the same size."""
    pieces = zip(*(tensor.chunk(parts) for tensor in (*inputs, target)), strict=True)
    return [(piece[:-1], piece[-1]) for piece in pieces]


def reduce_gradients(session: Session, last: bool) -> AbstractContextManager[Any]:
    """Ranks exchange gradients with the last part of a step only."""
    if session.sharded:
        session.model.set_requires_gradient_sync(last)  # type: ignore[operator]
    elif session.processes.world > 1 and not last:
        skip: AbstractContextManager[Any] = session.runner.no_sync()  # type: ignore[operator]
        return skip
    return nullcontext()
