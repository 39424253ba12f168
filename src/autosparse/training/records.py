"""What is written down of an epoch, and what a person sees of it."""

from __future__ import annotations

from typing import Any

from autosparse.training.progress import Moment
from autosparse.training.session import Session
from autosparse.training.validate import Score


def is_best(session: Session, score: Score) -> bool:
    """Whether this is the most accurate of the sparsest epochs; half a point of sparsity is the same sparsity."""
    if session.sp is None:
        return score.accuracy > session.position.best_accuracy
    gained = session.sp.sparsity() - session.position.best_sparsity
    return gained > 0.005 or (gained >= -0.005 and score.accuracy > session.position.best_accuracy)


def metrics(session: Session, epoch: int, loss: float, rate: float, alpha: float | None, score: Score) -> dict[str, Any]:
    """The line of an epoch in metrics.jsonl; rate and alpha are those it was trained with."""
    line: dict[str, Any] = {
        "epoch": epoch,
        "step": session.position.step,
        "loss": loss,
        "lr": rate,
        "validation_loss": score.loss,
        "accuracy": score.accuracy,
        "seconds": session.seconds,
        "processor_seconds": session.processor_seconds,
    }
    if session.sp is not None:
        past = session.sp.history[-1]
        line |= {"alpha": alpha, **{name: past[name] for name in ("sparsity", "densities", "thresholds")}}
        speed = session.sp.speed()
        if speed is not None:
            line |= {"step_ms": speed.milliseconds, "dense_step_ms": speed.dense_milliseconds}
        line |= {"train_fraction": session.sp.cost.train_fraction, "test_fraction": session.sp.cost.test_fraction}
    return line


def moment(session: Session, loss: float | None = None, accuracy: float | None = None) -> Moment:
    """What the progress shows now; the accuracy is that of the last epoch."""
    position, past = session.position, session.sp.history if session.sp else []
    mean = float(session.loss_sum) / max(1, position.batch) if loss is None else loss
    if accuracy is not None:
        session.last_accuracy = accuracy
    return Moment(
        min(position.epoch + 1, session.recipe.train.epochs),
        session.recipe.train.epochs,
        position.step,
        mean,
        session.last_accuracy,
        session.sp.alpha if session.sp else None,
        past[-1]["sparsity"] if past else None,
    )
