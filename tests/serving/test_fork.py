"""A deployed model in a forked child."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from autosparse.kernels import library

pytestmark = [
    pytest.mark.skipif(library.engine() is None, reason=f"no engine: {library.why_not()}"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
]

# Everything native, on two threads; what `{build}` gives is called before the fork, in the child, and afterwards.
SCRIPT = """
import os, signal, sys, time, warnings
import torch
from torch import nn
from autosparse import models
from autosparse.serving import deploy
from autosparse.serving.linear import PackedLinear
from autosparse.serving.native import NativeModule, NativeRegion
from autosparse.serving.program import Program

warnings.simplefilter("ignore")
measure, ways = NativeRegion.measure, PackedLinear.ways
NativeRegion.measure = lambda region, inputs: (measure(region, inputs), (0.0, 1.0))[1]
PackedLinear.ways = lambda layer, tokens: ways(layer, tokens)[:1]

def pruned(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[torch.rand_like(parameter) < 0.5] = 0
    return model.eval()

torch.manual_seed(0)
{build}
expected = call()
programs = [program for part in deployed.modules() if isinstance(part, NativeRegion) for program in part._programs.values()]
arenas = [program.arena for program in programs]
before = [arena.clone() for arena in arenas]
large = torch.randn(512, 512)
large @ large  # torch's threads
# as if other threads had been at work
locks = [part._lock for part in (*deployed.modules(), *programs) if isinstance(part, NativeModule | Program)]
for lock in locks:
    lock.acquire()
child = os.fork()
if child == 0:
    for arena in arenas:
        arena.fill_(0)
    large @ large
    good = torch.allclose(call(), expected, atol=1e-5) and torch.allclose(call(), expected, atol=1e-5)
    os._exit(0 if good and deployed.threads == 1 else 3)
deadline = time.monotonic() + 60
done, status = os.waitpid(child, os.WNOHANG)
while not done:
    if time.monotonic() > deadline:
        os.kill(child, signal.SIGKILL)
        sys.exit("the child hangs")
    time.sleep(0.02)
    done, status = os.waitpid(child, os.WNOHANG)
for lock in locks:
    lock.release()
assert os.waitstatus_to_exitcode(status) == 0, status
assert all(map(torch.equal, arenas, before)), "the child has written into its parent's memory"
assert torch.equal(call(), expected) and deployed.threads == 2
"""
CONVOLUTIONS = """
model = pruned(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)))
x = torch.randn(4, 3, 16, 16)
deployed = deploy(model, x, threads=2)
call = lambda: deployed(x)
"""
LINEAR = """
model = pruned(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
x = torch.randn(100, 64)
deployed = deploy(model, x, threads=2)
call = lambda: torch.cat([deployed(x), deployed(x[:1])])
"""
TRANSLATION = """
model = pruned(models.transformer(vocabulary=50, size=32, heads=4, feed_forward=64, encoder_layers=1, decoder_layers=2))
source = torch.randint(4, 50, (2, 7))
deployed = deploy(model, (source, source), threads=2)
assert deployed.decoder is not None
call = lambda: deployed.generate(source, 2, 3, 8).double()
"""


@pytest.mark.parametrize("build", [CONVOLUTIONS, LINEAR, TRANSLATION], ids=["convolutions", "linear", "translation"])
def test_a_forked_child_computes_on_one_thread(build: str) -> None:
    script = SCRIPT.replace("{build}", build)
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr
