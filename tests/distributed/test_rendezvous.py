"""The store of processes of torchrun: what MPI's communicators would exchange, and strangers at its port."""
from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from tinsmith.core.errors import CommunicationError
from tinsmith.distributed.transport.rendezvous import PORTS, Store, StoreGroup


def _free_ports() -> dict[str, str]:
    """Return variables of a launcher whose next ports are free at the moment: each call is another run, since the
    system may give a port again."""
    with socket.create_server(("", 0)) as found:
        port = found.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(min(port, 65535 - PORTS)), "WORLD_SIZE": "3",
            "TORCHELASTIC_RUN_ID": uuid.uuid4().hex}


def _in_threads(count: int, work: Callable[[StoreGroup], Any], given: dict[str, str] | None = None) -> list[Any]:
    """Return what ``work`` returns for each of ``count`` processes, here threads."""
    variables = given or _free_ports()
    found: list[Any] = [None] * count
    stores: list[Store] = []

    def run(rank: int) -> None:
        try:
            store = Store(rank, variables, wait=20)
            stores.append(store)
            found[rank] = work(StoreGroup(store, "world", count, rank))
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(r,)) for r in range(count)]
    for t in reversed(threads):  # rank 0, which serves the store, comes last
        t.start()
    for t in threads:
        t.join(60)
    for store in stores:
        store.close()
    for value in found:
        if isinstance(value, BaseException):
            raise value
    return found


def test_small_messages() -> None:
    def work(group: StoreGroup) -> Any:
        every = np.empty((3, 2), np.int64)
        group.Allgather(np.array([group.rank, 7], np.int64), every)
        first = np.full(3, group.rank, np.int32)
        group.Bcast(first, 2)
        group.Barrier()
        return every.tolist(), first.tolist(), group.allgather({"rank": group.rank})

    for every, first, told in _in_threads(3, work):
        assert every == [[0, 7], [1, 7], [2, 7]]
        assert first == [2, 2, 2]
        assert told == [{"rank": 0}, {"rank": 1}, {"rank": 2}]


def test_messages_do_not_wait_and_keep_their_order() -> None:
    """Both processes send first; messages with another tag, or in the other direction, are apart."""
    def work(group: StoreGroup) -> Any:
        other = 1 - group.rank
        for k in range(3):
            group.isend([group.rank, k], other, 0)
        group.isend("last", other, 5)
        tagged = group.recv(other, 5)
        return tagged, [group.recv(other, 0) for _ in range(3)], group.bcast(group.rank, 1)

    for rank, (tagged, found, root) in enumerate(_in_threads(2, work)):
        assert tagged == "last" and root == 1
        assert found == [[1 - rank, k] for k in range(3)]


def test_groups_do_not_hear_each_other() -> None:
    def work(group: StoreGroup) -> Any:
        part = group.Split(group.rank % 2, -group.rank)
        copy = part.Dup()
        return part.allgather(group.rank), copy.allgather(f"copy {group.rank}"), part.Get_rank(), part.Get_size()

    found = _in_threads(3, work)
    even = [2, 0], ["copy 2", "copy 0"]
    assert found == [(*even, 1, 2), ([1], ["copy 1"], 0, 1), (*even, 0, 2)]


def test_values_of_the_host_are_refused() -> None:
    def work(group: StoreGroup) -> str:
        with pytest.raises(CommunicationError, match="memory of the host") as error:
            group.Allreduce(np.zeros(1), np.zeros(1), "sum")
        return str(error.value)

    assert all("mpirun" in text for text in _in_threads(2, work))


def test_a_stranger_at_the_port_is_passed_over() -> None:
    """The first port belongs to another program, which never answers: rank 0 takes the next, where others find it."""
    variables = _free_ports()
    with socket.create_server(("", int(variables["MASTER_PORT"]) + 1)):
        found = _in_threads(2, lambda group: group.allgather(group.rank), variables)
    assert found == [[0, 1], [0, 1]]


def test_who_does_not_know_the_word_gets_no_answer() -> None:
    variables = _free_ports()
    with closing(Store(0, variables, wait=20)):
        with socket.create_connection(("127.0.0.1", int(variables["MASTER_PORT"]) + 1), timeout=10) as stranger:
            stranger.sendall(b'"guess"\n')
            assert stranger.recv(64) == b""
        with pytest.raises(CommunicationError, match="rank 0 was not found"):
            Store(1, variables | {"TORCHELASTIC_RUN_ID": "another"}, wait=0.0)


def test_a_closed_store_is_not_found() -> None:
    """Its port is free for the next run, also for one with the same variables."""
    variables = _free_ports()
    for _ in range(2):
        with closing(Store(0, variables, wait=20)) as first, closing(Store(1, variables, wait=20)) as second:
            second.exchanged("a message", 1, 2, b"sent", wait=False)
            assert first.exchanged("a message", 0, 2, b"") == [b"", b"sent"]
        with pytest.raises(CommunicationError, match="rank 0 was not found"):
            Store(1, variables, wait=0.0)


def test_missing_variables() -> None:
    with pytest.raises(CommunicationError, match="MASTER_PORT"):
        Store(0, {"MASTER_ADDR": "127.0.0.1"})
    with pytest.raises(CommunicationError, match="rank 0 was not found"):
        Store(1, _free_ports(), wait=0.0)
