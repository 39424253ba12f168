"""One rank of test_bfloat16.py: DistributedDataParallel under autocast; saves plans, losses and weights."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from autosparse.compute import timing
from tests.compute.test_auto import EPOCHS, STEPS, Measured, Run


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    timing.measure = Measured(2.5 if rank == 0 else 100.0)  # type: ignore[assignment]  # the first rank's times count
    run = Run()
    run.autocast = torch.bfloat16
    inside, run.model = run.model, DistributedDataParallel(run.model)
    run.train(EPOCHS * STEPS)
    plans = [(plan.precision, plan.passes) for plan in run.sp.layer_plans()]
    torch.save({"plans": plans, "model": inside.state_dict()}, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
