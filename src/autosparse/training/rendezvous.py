"""How processes meet after torchrun has restarted them: its store still holds the addresses of those that died."""

from __future__ import annotations

import secrets
import time

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

TOKEN = "autosparse/attempt"
POLL_SECONDS = 0.02
PATIENCE_SECONDS = 0.5  # for an answer, before the token is read again: it may be that of an attempt that died


def meet() -> tuple[Store, int, int]:
    """A store that only the processes of this attempt write to, this process's rank and their number."""
    store, rank, world = next(rendezvous("env://"))
    token = invite(store, world) if rank == 0 else accept(store, rank)
    return PrefixStore(token, store), rank, world


def invite(store: Store, world: int) -> str:
    """A new token, once every other rank has answered to it."""
    token = secrets.token_hex(8)
    store.set(TOKEN, token)
    for rank in range(1, world):
        store.set(f"{token}/go/{rank}", _text(store, f"{token}/hello/{rank}"))
    return token


def accept(store: Store, rank: int) -> str:
    """The token of the living rank 0, which repeats what this process has told it."""
    mine = secrets.token_hex(8)
    while True:
        token = _text(store, TOKEN)
        store.set(f"{token}/hello/{rank}", mine)
        go, until = f"{token}/go/{rank}", time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            if store.check([go]) and _text(store, go) == mine:
                return token
            time.sleep(POLL_SECONDS)


def _text(store: Store, key: str) -> str:
    """Waits for the key."""
    return str(store.get(key), "ascii")
