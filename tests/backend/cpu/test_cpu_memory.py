"""The host allocator and its requests to the operating system."""
from __future__ import annotations

import ctypes
import threading

import pytest

from tinsmith.backend.cpu import os_calls
from tinsmith.backend.cpu.device import HostMemory
from tinsmith.backend.memory import MemoryBlock, size_class
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.errors import OutOfMemoryError


def test_size_classes_fit_and_waste_at_most_a_quarter() -> None:
    for n in [*range(5000), *(2**k + d for k in range(12, 40) for d in (-1, 0, 1))]:
        size = size_class(n)
        assert size >= max(n, 1) and size % 64 == 0 and size_class(size) == size
        assert n <= 256 or size <= 1.25 * n


@pytest.mark.parametrize("nbytes", [0, 1, 64, 100, 5000, 1 << 20, (2 << 20) - 1, 2 << 20, (5 << 20) + 3])
def test_blocks_are_aligned_and_usable(nbytes: int) -> None:
    memory = HostMemory()
    block = memory.alloc(nbytes)
    assert block.address % 64 == 0 and block.capacity >= nbytes
    if block.capacity >= os_calls.HUGE_PAGE:
        assert block.address % os_calls.HUGE_PAGE == 0
    ctypes.memset(block.address, 7, block.capacity)
    memory.free(block)
    memory.trim()


def test_freed_blocks_are_reused_latest_first() -> None:
    memory = HostMemory()
    a, b = memory.alloc(1000), memory.alloc(1000)
    memory.free(a)
    memory.free(b)
    assert memory.alloc(990) is b and memory.alloc(1024) is a
    assert memory.alloc(1000) not in (a, b)


def test_use_is_counted() -> None:
    memory, before = HostMemory(), GlobalCounters.mem_used
    block = memory.alloc(1000)
    assert memory.in_use == 1000 and GlobalCounters.mem_used == before + 1000
    memory.free(block)
    assert memory.in_use == 0 and GlobalCounters.mem_used == before and memory.cached == 1024
    memory.trim()
    assert memory.cached == 0


def test_cache_is_bounded_and_drops_the_oldest_class() -> None:
    memory = HostMemory(cache_limit=3000)
    small, large = memory.alloc(1024), memory.alloc(2048)
    memory.free(small)
    memory.free(large)
    assert memory.cached == 2048
    assert memory.alloc(2048) is large and memory.alloc(1024) is not small


def test_too_much_names_the_sizes() -> None:
    memory = HostMemory()
    kept = memory.alloc(4096)
    with pytest.raises(OutOfMemoryError, match=r"1125899906842624 bytes requested, 4096 bytes in use"):
        memory.alloc(1 << 50)
    memory.free(kept)


def test_refusal_by_the_system_empties_the_cache_first(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = HostMemory()
    memory.free(memory.alloc(1 << 20))

    def refuse(nbytes: int) -> object:
        raise MemoryError

    monkeypatch.setattr(os_calls, "alloc", refuse)
    with pytest.raises(OutOfMemoryError):
        memory.alloc(2 << 20)
    assert memory.cached == 0


def test_double_free_is_noticed() -> None:
    memory = HostMemory()
    block = memory.alloc(10)
    memory.free(block)
    with pytest.raises(AssertionError, match="freed twice"):
        memory.free(block)


def test_threads_share_it() -> None:
    memory = HostMemory()
    clashes: list[MemoryBlock] = []

    def work(mark: int) -> None:
        for n in range(300):
            block = memory.alloc(64 + n % 5 * 64)
            ctypes.memset(block.address, mark, block.nbytes)
            if ctypes.string_at(block.address, block.nbytes) != bytes([mark]) * block.nbytes:
                clashes.append(block)
            memory.free(block)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not clashes and memory.in_use == 0


def test_the_machine_is_described() -> None:
    assert os_calls.usable_cores() >= 1
    assert os_calls.total_memory() > 1 << 20
    sizes = os_calls.cache_sizes()
    assert 4096 <= sizes.l1 <= sizes.l2
