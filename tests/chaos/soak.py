"""`make soak`: examples/serve.py under twice the load that it can carry, and what it must hold meanwhile.

python -m tests.chaos.soak --seconds 600
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import autosparse
from autosparse.export import SparseModel

SERVER = Path(__file__).parents[2] / "examples" / "serve.py"
SHAPE = (3, 32, 32)
WIDTH = 512  # computing takes far longer than HTTP
WORKERS, WAITING = 1, 15
INPUTS = 16
ALONE = 40  # requests one after the other, for the unloaded time
START = 120  # seconds that the server gets to start, and to end


@dataclass(frozen=True)
class Answer:
    """One request."""

    status: int  # 0: no answer
    seconds: float
    is_right: bool
    began: float = 0.0


@dataclass
class Soak:
    """Everything that was measured."""

    unloaded: float  # median seconds of a request that comes alone
    capacity: float  # requests per second, one after the other
    answers: list[Answer] = field(default_factory=list)
    late: list[Answer] = field(default_factory=list)  # sent just before the stop
    memory: list[int] = field(default_factory=list)  # bytes, once per second
    code: int | None = None
    stop_seconds: float = 0.0

    @property
    def bound(self) -> float:
        """Twice the unloaded time times the queue's length."""
        return 2 * self.unloaded * (WORKERS + WAITING)

    def seconds_of(self, status: int) -> list[float]:
        return sorted(answer.seconds for answer in self.answers if answer.status == status) or [0.0]

    def delays(self) -> list[str]:
        """What took too long, in sentences; on a machine with other work this says little."""
        accepted, refused = self.seconds_of(200), self.seconds_of(503)
        return failing(
            {
                f"an accepted request took {accepted[-1]:.3f} s, allowed {self.bound:.3f} s": accepted[-1] <= self.bound,
                f"refusals took {at(refused, 0.99):.4f} s (99 %), longer than an answer": at(refused, 0.99) <= self.unloaded,
                f"the stop took {self.stop_seconds:.1f} s": self.stop_seconds <= self.bound + 5,
            }
        )

    def faults(self) -> list[str]:
        """What went wrong, in sentences, however long it took."""
        strange = sorted({answer.status for answer in [*self.answers, *self.late]} - {200, 503})
        wrong = sum(answer.status == 200 and not answer.is_right for answer in [*self.answers, *self.late])
        half = len(self.memory) // 2
        growth = max(self.memory[half:]) / max(self.memory[: half or 1]) if self.memory else 1.0
        return failing(
            {
                f"{wrong} answers are wrong": wrong == 0,
                f"requests ended with {strange}": not strange,
                "nothing was refused: the load was too low": count(self.answers, 503) > 0,
                "nothing was accepted": count(self.answers, 200) > 0,
                f"memory grew by {growth:.2f} between the halves": growth <= 1.1,
                f"the server ended with {self.code}": self.code == 0,
            }
        )

    def lines(self) -> list[str]:
        accepted, refused = self.seconds_of(200), self.seconds_of(503)
        other = len(self.answers) - count(self.answers, 200) - count(self.answers, 503)
        megabytes = [size / 2**20 for size in self.memory] or [0.0]
        return [
            f"unloaded: {1e3 * self.unloaded:.1f} ms per request, {self.capacity:.1f} requests/s",
            f"sent: {len(self.answers):,}; answered: {count(self.answers, 200):,}; "
            f"refused with 503: {count(self.answers, 503):,}; other: {other}",
            f"wrong answers: {sum(answer.status == 200 and not answer.is_right for answer in self.answers)}",
            f"accepted, ms: median {1e3 * at(accepted, 0.5):.0f}, 99 % {1e3 * at(accepted, 0.99):.0f}, longest "
            f"{1e3 * accepted[-1]:.0f}; allowed {1e3 * self.bound:.0f}",
            f"refused, ms: median {1e3 * at(refused, 0.5):.1f}, 99 % {1e3 * at(refused, 0.99):.1f}, "
            f"longest {1e3 * refused[-1]:.1f}",
            f"memory, MB: {megabytes[0]:.0f} at first, {max(megabytes):.0f} at most, {megabytes[-1]:.0f} at last",
            f"stop: {len(self.late)} requests in flight, {count(self.late, 200)} answered, {count(self.late, 503)} refused; "
            f"exit code {self.code} after {self.stop_seconds:.1f} s",
        ]


def failing(checks: dict[str, bool]) -> list[str]:
    return [sentence for sentence, holds in checks.items() if not holds]


def at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def count(answers: Sequence[Answer], status: int) -> int:
    return sum(answer.status == status for answer in answers)


class Client:
    """Sends inputs whose outputs it knows."""

    def __init__(self, port: int, inputs: torch.Tensor, expected: torch.Tensor) -> None:
        self.port, self.expected = port, expected
        self.requests = [self._request(x.numpy().tobytes()) for x in inputs]

    @staticmethod
    def _request(body: bytes) -> bytes:
        head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def send(self, number: int) -> Answer:
        """One request on a connection of its own."""
        began = time.monotonic()
        number %= len(self.requests)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(self.requests[number])
            answer = await reader.read()
            writer.close()
        except OSError:
            return Answer(0, time.monotonic() - began, False, began)
        seconds = time.monotonic() - began
        if not answer:
            return Answer(0, seconds, False, began)
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        is_right = status == 200 and torch.allclose(torch.tensor(json.loads(body)), self.expected[number], rtol=1e-3, atol=1e-4)
        return Answer(status, seconds, is_right, began)

    async def alone(self, requests: int) -> list[Answer]:
        return [await self.send(number) for number in range(requests)]

    async def at_rate(self, rate: float, seconds: float, memory: list[int], pid: int) -> list[Answer]:
        """Requests at fixed times, whatever becomes of those before."""
        tasks: list[Awaitable[Answer]] = []
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            tasks += [asyncio.create_task(self.send(number)) for number in range(len(tasks), int(now * rate) + 1)]
            if len(memory) <= now:
                memory.append(resident(pid))
            await asyncio.sleep(0.5 / rate)
        return list(await asyncio.gather(*tasks))


def resident(pid: int) -> int:
    """Bytes of memory that a process has in use."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make_model(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """A pruned net as a hub folder; inputs and the outputs of plain torch."""
    torch.manual_seed(0)
    model = autosparse.models.small_conv(classes=10, in_channels=SHAPE[0], width=WIDTH)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 4:
                parameter[torch.rand_like(parameter) < 0.9] = 0
                parameter.mul_(3)  # as large as before: outputs that are nearly zero would all be right
    arguments = {"classes": 10, "in_channels": SHAPE[0], "width": WIDTH}
    SparseModel.of(model.eval(), "small_conv", arguments).save_pretrained(folder)
    inputs = torch.rand(INPUTS, *SHAPE)
    with torch.no_grad():
        return inputs, torch.cat([model(x[None]) for x in inputs])


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    options = ["--port", str(port), "--workers", str(WORKERS), "--queue", str(WAITING)]
    command = [sys.executable, str(SERVER), str(folder), "--shape", *map(str, SHAPE), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    server = subprocess.Popen(command, env=environment)
    until = time.monotonic() + START
    while time.monotonic() < until and server.poll() is None:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return server
        time.sleep(0.1)
    server.kill()
    raise RuntimeError("the server did not start")


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


async def measure(client: Client, server: subprocess.Popen[bytes], seconds: float) -> Soak:
    """Alone, then at twice the capacity, then a stop with the queue full."""
    await client.alone(ALONE // 4)
    quiet = await client.alone(ALONE)
    assert all(answer.is_right for answer in quiet), "wrong before there was any load"
    unloaded = statistics.median(answer.seconds for answer in quiet)
    soak = Soak(unloaded, WORKERS / unloaded)
    soak.answers = await client.at_rate(2 * soak.capacity, seconds, soak.memory, server.pid)
    last = [asyncio.create_task(client.send(number)) for number in range(2 * (WORKERS + WAITING))]
    await asyncio.sleep(soak.unloaded)  # they have reached the server
    began = time.monotonic()
    server.send_signal(signal.SIGTERM)
    soak.late = list(await asyncio.gather(*last))
    soak.code = await asyncio.to_thread(server.wait, START)
    soak.stop_seconds = time.monotonic() - began
    return soak


def soak(seconds: float) -> Soak:
    """Start a server, load it, stop it."""
    with tempfile.TemporaryDirectory() as folder:
        inputs, expected = make_model(Path(folder) / "model")
        gc.freeze()  # collections of the client's own would be counted as the server's delays
        port = free_port()
        server = start(Path(folder) / "model", port)
        try:
            return asyncio.run(measure(Client(port, inputs, expected), server, seconds))
        finally:
            server.kill()
            server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    result = soak(parser.parse_args().seconds)
    problems = [*result.faults(), *result.delays()]
    print("\n".join([*result.lines(), *(f"FAILED: {problem}" for problem in problems)]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
