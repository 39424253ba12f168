"""Sparse training on two processes with DDP: every rank sees half of each batch, all end with the same zeros.

    torchrun --standalone --nproc-per-node 2 examples/two_processes.py

The order is: sparsify, then DDP, then the optimizer, then bind.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import autosparse
from autosparse import AutoSparse

EPOCHS, BATCH, SPARSITY = 6, 32, 0.8


def points(count: int) -> TensorDataset:
    """Points in ten dimensions, in four classes by the signs of two products."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 10, generator=generator)
    labels = (inputs[:, 0] * inputs[:, 1] > 0).long() + 2 * (inputs[:, 2] * inputs[:, 3] > 0).long()
    return TensorDataset(inputs, labels)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # DDP gives every rank the weights of rank 0
    data = points(1024)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH // ranks, sampler=sampler)

    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    sp = autosparse.sparsify(model, AutoSparse(target_sparsity=SPARSITY), epochs=EPOCHS, steps_per_epoch=len(loader))
    parallel = DistributedDataParallel(model)
    opt = torch.optim.AdamW(sp.param_groups(weight_decay=0.01), lr=5e-3)
    sp.bind(opt)

    criterion = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = 0.0
        for inputs, labels in loader:
            loss = criterion(parallel(inputs), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        sp.end_epoch(loss=total / len(loader))  # the mean over all ranks is taken inside
        if rank == 0:
            print(f"epoch {epoch}: loss {sp.history[-1]['loss']:.4f}, {sp.sparsity():.1%} zeros, alpha {sp.alpha:.3f}")

    zeros: list[int] = [0] * ranks
    dist.all_gather_object(zeros, sp.report().zeros)
    if rank == 0:
        print(sp.report())
        print(f"zeros on each rank: {zeros}")
        torch.save(sp.finalize().state_dict(), os.environ.get("OUTPUT", "sparse.pt"))
    dist.barrier()  # a rank that leaves early can abort the others
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
