"""A sparse net on scikit-learn's digits, beside a dense run of the same length: three lines make the difference."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autosparse
from autosparse import AutoSparse

EPOCHS, LR, MOMENTUM, WEIGHT_DECAY, SPARSITY = 30, 0.1, 0.9, 1e-4, 0.8
Loader = DataLoader[tuple[Tensor, ...]]


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1,347 images of 8x8 to train on, 450 to test on."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    train, test = train_test_split(torch.arange(len(labels)), test_size=450, random_state=0, stratify=labels)
    numbers = torch.tensor(labels)
    return TensorDataset(pixels[train], numbers[train]), TensorDataset(pixels[test], numbers[test])


def conv_net() -> nn.Sequential:
    """Three convolutions and a classifier, the same at every call."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((1, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 2 * 2, 10))


def fit(model: nn.Module, opt: torch.optim.Optimizer, loader: Loader, sp: autosparse.Sparsifier | None = None) -> None:
    """An ordinary training loop; only its last two lines know of sparsity."""
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(opt, EPOCHS)
    for _ in range(EPOCHS):
        for x, y in loader:
            loss = criterion(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        decay.step()
        if sp is not None:
            sp.end_epoch()


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    torch.set_num_threads(1)  # the net is so small that threads cost more than they bring
    train, test = digits()
    loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)

    dense = conv_net()
    fit(dense, torch.optim.SGD(dense.parameters(), LR, MOMENTUM, weight_decay=WEIGHT_DECAY), loader)

    model = conv_net()
    method = AutoSparse(alpha=0.75, target_sparsity=SPARSITY)
    sp = autosparse.sparsify(model, method, epochs=EPOCHS, steps_per_epoch=len(loader), example_input=test[:1][0])
    opt = torch.optim.SGD(sp.param_groups(weight_decay=WEIGHT_DECAY), LR, MOMENTUM)
    sp.bind(opt)
    fit(model, opt, loader, sp)

    print(f"dense   test accuracy {accuracy(dense, *test[:]):.4f}")
    print(f"sparse  test accuracy {accuracy(model, *test[:]):.4f} with {sp.sparsity():.1%} zeros")
    print(sp.report())
    print(f"Train F {sp.cost.train_fraction:.3f}, Test F {sp.cost.test_fraction:.3f}")


if __name__ == "__main__":
    main()
