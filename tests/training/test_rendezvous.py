"""Ranks that were restarted find each other, whatever the attempt before has left in the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from autosparse.training.rendezvous import TOKEN, accept, invite


@pytest.mark.parametrize("is_late", [False, True])
def test_a_token_of_a_dead_attempt_is_not_taken(is_late: bool) -> None:
    store = dist.HashStore()
    store.set(TOKEN, "dead")
    for rank in (1, 2):
        store.set(f"dead/hello/{rank}", "of the dead")
        store.set(f"dead/go/{rank}", "of the dead")
    with ThreadPoolExecutor(3) as pool:
        leader = None if is_late else pool.submit(invite, store, 3)
        others = [pool.submit(accept, store, rank) for rank in (1, 2)]
        if leader is None:
            while store.get("dead/hello/2") == b"of the dead" or store.get("dead/hello/1") == b"of the dead":
                pass  # both have answered to the dead one
            leader = pool.submit(invite, store, 3)
        tokens = {future.result(timeout=60) for future in (leader, *others)}
    assert len(tokens) == 1
    assert tokens != {"dead"}
