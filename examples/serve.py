"""A sparse model behind HTTP, for requests that may come faster than it can answer them.

    autosparse export runs/digits --format hub --out digits-sparse
    pip install "autosparse[serve]"
    python examples/serve.py digits-sparse --shape 1 8 8

or, calibrated on the training data of a finished run:

    python examples/serve.py runs/digits --shape 1 8 8 --precision int8

or prepared beforehand, so that nothing is calibrated or measured when the server starts:

    autosparse export runs/digits --format deployed --dtype int8 --out digits-serving
    python examples/serve.py digits-serving --shape 1 8 8

One input per request: its float32 numbers as bytes, in the order of memory; the answer is the model's output as JSON. At most
`--workers` requests are computed at once and `--queue` wait for their turn. Whoever comes then gets 503 at once and may try
again, so that accepted requests are answered in bounded time and memory does not grow. SIGTERM or Ctrl-C: the requests
that were accepted are answered, then the server ends.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from torch import Tensor, nn

import autosparse
from autosparse.export import SparseModel
from autosparse.training.deployed import deploy_finished
from autosparse.training.finished import open_finished

MOST_CONNECTIONS = 1000
FLOAT_BYTES = 4


class Queue:
    """A model that some threads call, for a bounded number of requests."""

    def __init__(self, model: nn.Module, workers: int, waiting: int) -> None:
        self.model, self.most, self.accepted = model, workers + waiting, 0
        self.threads = ThreadPoolExecutor(workers)

    def refuse_if_full(self) -> None:
        if self.accepted >= self.most:
            raise HTTPException(503, "too many requests wait already: try again later", {"Retry-After": "1"})

    async def answer(self, x: Tensor) -> Tensor:
        """The output for one input, when its turn comes; refused at once where too many wait already."""
        self.refuse_if_full()
        self.accepted += 1  # the event loop's thread alone counts
        try:
            output: Tensor = await asyncio.get_running_loop().run_in_executor(self.threads, self.model, x)
            return output
        finally:
            self.accepted -= 1


def make_app(queue: Queue, shape: tuple[int, ...]) -> FastAPI:
    """Two addresses: predict, and how busy the server is."""
    app = FastAPI(title="A sparse model")

    @app.post("/predict")
    async def predict(request: Request) -> list[float]:
        queue.refuse_if_full()  # before the body is read
        x = as_input(await body_of(request, FLOAT_BYTES * math.prod(shape)), shape)
        values: list[float] = (await queue.answer(x))[0].tolist()
        return values

    @app.get("/status")
    async def status() -> dict[str, int]:
        return {"accepted": queue.accepted, "most": queue.most}

    return app


async def body_of(request: Request, size: int) -> bytes:
    """Exactly this many bytes; a longer body is not read to its end."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > size:
            break
    if len(body) != size:
        raise HTTPException(422, f"send {size} bytes, the float32 numbers of one input")
    return body


def as_input(body: bytes, shape: tuple[int, ...]) -> Tensor:
    """A batch of one input."""
    return torch.frombuffer(bytearray(body), dtype=torch.float32).view(1, *shape)


def load(folder: str, shape: tuple[int, ...], precision: str = "float32") -> nn.Module:
    """The model of a hub folder or a run, deployed for single inputs, or a prepared one; each worker computes on one thread."""
    if (Path(folder) / "run.json").is_file():
        return deploy_finished(open_finished(Path(folder)), (torch.rand(1, *shape),), precision, threads=1)
    if (Path(folder) / "deployment.json").is_file():  # it has a precision of its own
        return autosparse.load_deployed(folder, SparseModel.from_pretrained(folder).model, threads=1)
    if precision != "float32":
        sys.exit(f"--precision {precision} needs data to calibrate on: give the folder of a finished run")
    return autosparse.deploy(SparseModel.from_pretrained(folder).eval(), torch.rand(1, *shape), threads=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="folder of `autosparse export --format hub` or `deployed`, or a finished run")
    parser.add_argument("--shape", type=int, nargs="+", required=True, help="sizes of one input, such as 1 8 8")
    parser.add_argument("--workers", type=int, default=1, help="requests computed at once; at most one per core")
    parser.add_argument("--queue", type=int, default=15, help="requests that may wait")
    parser.add_argument("--precision", default="float32", help="float32, or of a run also bfloat16 or int8")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    shape = tuple(options.shape)
    torch.set_num_threads(1)
    app = make_app(Queue(load(options.folder, shape, options.precision), options.workers, options.queue), shape)
    gc.freeze()  # else a full collection walks through all of torch and holds every request up for about 0.2 s
    signal.signal(signal.SIGTERM, end)  # uvicorn raises the signal again when all is answered
    uvicorn.run(app, host=options.host, port=options.port, limit_concurrency=MOST_CONNECTIONS, access_log=False)


def end(*_: Any) -> None:
    sys.exit(0)


if __name__ == "__main__":
    main()
