"""Machines to simulate: the rates of a device, and of the links between processes, from a JSON file.

The time of a collective is that of the alpha-beta model, latency plus bytes over bandwidth (R. Thakur, R. Rabenseifner,
W. Gropp: Optimization of Collective Communication Operations in MPICH, 2005, section 3; rings: P. Patarasuk, X. Yuan:
Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations, 2009). A group over several hosts works in two
levels: within hosts, and between processes of equal number on their hosts, as NCCL does with a network adapter per GPU.
"""
from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.planner.roofline import Machine, Rate, default_machine, estimate
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError
from tinsmith.target.target import Target

FOLDER: Final = Path(__file__).with_name("machines")
KINDS: Final = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier", "send")
_MESSAGES: Final = ("send", "receive", "post", "exchange")


@dataclass(frozen=True)
class Link:
    """A level of links: within a host, or between hosts.

    Attributes:
        latency: seconds of a message without data from one process to the next.
        bandwidth: bytes per second of a process, in one direction.
        call: seconds of a collective that do not depend on its size or the number of processes.
        kinds: [call, bandwidth] of collectives that were measured one by one.
        trees: gather and scatter in log2(n) rounds instead of a ring's n - 1, as MPI does with small messages.
    """

    latency: float
    bandwidth: float
    call: float = 0.0
    kinds: dict[str, list[float]] = field(default_factory=dict)
    trees: bool = True

    def of(self, kind: str) -> tuple[float, float]:
        """Return the seconds of a call, and the bandwidth, of a kind of collective."""
        call, bandwidth = self.kinds.get("send" if kind in _MESSAGES else kind, (self.call, self.bandwidth))
        return call, bandwidth

    def seconds(self, kind: str, nbytes: float, count: int) -> float:
        """Return the seconds of a collective of ``count`` processes.

        >>> Link(1e-6, 1e9).seconds("all_reduce", 1e9, 4), Link(1e-6, 1e9).seconds("all_gather", 4e9, 4)
        (1.500006, 3.000002)

        Args:
            nbytes: bytes of the full value: of an all-reduce, a broadcast or a message; of the result of an all-gather;
                of the argument of a reduce-scatter or an all-to-all.
        """
        if count < 2:
            return 0.0
        call, bandwidth = self.of(kind)
        rounds, moved = math.ceil(math.log2(count)), nbytes / bandwidth
        share = moved * (count - 1) / count
        if kind == "all_reduce":
            return call + min(2 * (count - 1) * self.latency + 2 * share, 2 * rounds * self.latency + 2 * moved)
        if kind in ("all_gather", "reduce_scatter"):
            return call + (rounds if self.trees else count - 1) * self.latency + share
        if kind == "all_to_all":
            return call + (count - 1) * self.latency + share
        if kind == "broadcast":
            return call + min(rounds * (self.latency + moved), (rounds + count - 1) * self.latency + 2 * share)
        if kind == "barrier":
            return call + rounds * self.latency
        return call + self.latency + moved


@dataclass(frozen=True)
class Links:
    """A machine to simulate.

    Attributes:
        name: a description.
        device: ``{"renderer": "cpu", "machine": …}``, as ``Machine.dumps`` writes it: kernels take the time of the
            model of their opts. Or ``{"renderer": "cuda", "arch": …, "cores": …, "clock": …, "rates": …}``: they take
            the time of the roofline, of which they reach a share. Rates: ``memory`` in bytes per second; ``peaks`` by
            dtype, and ``units`` by the dtype of a matrix unit, in operations per second; ``reached``, the shares of
            "memory", "peaks", and of "units" by the begin of their names; ``launch``, seconds between
            kernels.
        memory: bytes of memory of a device.
        per_host: processes of a host.
        within, between: links in a host, and between hosts.
        overlaps: collectives and kernels run at the same time without slowing each other.
        cores: cores that the processes of a host get together; 0 if each has its own device.
        sources: the origin of the numbers.
    """

    name: str
    device: dict[str, Any]
    memory: int
    per_host: int
    within: Link
    between: Link
    overlaps: bool = True
    cores: float = 0.0
    sources: dict[str, str] = field(default_factory=dict)

    def host(self, rank: int) -> int:
        """Return the number of the host of a process."""
        return rank // self.per_host

    def seconds(self, kind: str, nbytes: float, ranks: Sequence[int]) -> float:
        """Return the seconds of a collective among ``ranks``; ``nbytes`` as of ``Link.seconds``.

        >>> links = Links("two hosts", {}, 0, 2, Link(0.0, 1e9), Link(0.0, 1e8))
        >>> links.seconds("all_reduce", 1e9, [0, 1]), links.seconds("all_reduce", 1e9, [0, 2])
        (1.0, 10.0)
        >>> links.seconds("all_reduce", 1e9, range(4))  # within hosts: 0.5 s twice; 5 s for half of the data between
        6.0
        """
        count = len(ranks)
        hosts: dict[int, int] = {}
        for r in ranks:
            hosts[self.host(r)] = hosts.get(self.host(r), 0) + 1
        here, many = max(hosts.values(), default=1), len(hosts)
        if many == 1:
            return self.within.seconds(kind, nbytes, count)
        if here == 1 or kind in _MESSAGES:
            return self.between.seconds(kind, nbytes, count)
        if kind == "all_reduce":
            halves = [self.within.seconds(half, nbytes, here) for half in ("reduce_scatter", "all_gather")]
            return sum(halves) + self.between.seconds(kind, nbytes / here, many)
        if kind in ("all_gather", "reduce_scatter"):
            return self.within.seconds(kind, nbytes, here) + self.between.seconds(kind, nbytes / here, many)
        if kind == "all_to_all":
            outside = self.between.seconds(kind, nbytes * (count - here) / count * many / (many - 1), many)
            return max(self.within.seconds(kind, nbytes * here / count, here), outside)
        return self.within.seconds(kind, nbytes, here) + self.between.seconds(kind, nbytes, many)

    def slowdown(self, local_size: int, threads: int, busy: float = 1.0) -> float:
        """Return the factor on the time of kernels where processes share the cores of a host. ``busy``: the share of
        the time in which a process has work."""
        return max(local_size * threads * busy / self.cores, 1.0) if self.cores else 1.0

    def machine(self, target: Target, device: str) -> Machine:
        """Return the rates of the device, for predictions of kernels."""
        if "machine" in self.device:
            return Machine.loads(json.dumps(self.device["machine"]))._replace(device=device)
        rates = self.device.get("rates")
        found = default_machine(target, device)
        if rates is None:
            return found
        units = tuple(Rate(u.name, r, r) for u in target.units for r in [rates["units"].get(u.a.name)] if r)
        memory = (Rate("memory", rates["memory"], rates["memory"]),)
        return found._replace(memory=memory, peaks=tuple(Rate(n, r, r) for n, r in rates["peaks"].items()),
                              units=units, launch=rates["launch"], measured=True)

    def kernel(self, kernel: KernelProgram, machine: Machine) -> tuple[float, float, str]:
        """Return launch, the other seconds of a kernel, and the largest part: "memory", "arithmetic" or "launch"."""
        rates = self.device.get("rates")
        if rates is None:
            found = estimate(kernel.kernel, machine, kernel.work)
            return found.launch, found.seconds - found.launch, found.bound
        reached, work = rates["reached"], kernel.work
        peak = next((u.all * reached["units"][u.name.partition("_")[0]] for u in machine.units
                     if u.name == kernel.unit), machine.peak(dtypes.float32).all * reached["peaks"])
        memory, arithmetic = work.bytes / (rates["memory"] * reached["memory"]), work.operations / peak
        seconds = max(memory, arithmetic)
        bound = "launch" if seconds < machine.launch else "memory" if memory >= arithmetic else "arithmetic"
        return machine.launch, seconds, bound

    def dumps(self) -> str:
        """Return the file's text."""
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def load(path: str | Path) -> Links:
        """Read a file; a name without a folder may be one that comes with the package.

        >>> Links.load("h200.json").per_host
        8

        Raises:
            ArgumentError: if there is no such file, or it does not describe a machine.
        """
        places = [Path(path), FOLDER / path]
        found = next((p for p in places if p.is_file()), None)
        if found is None:
            known = ", ".join(sorted(p.name for p in FOLDER.glob("*.json")))
            raise ArgumentError("tinsmith simulate", f"no file {str(path)!r}",
                                f"one of {known}, or tinsmith simulate --measure {path}")
        try:
            fields = json.loads(found.read_text("utf-8"))
            within, between = (Link(**fields.pop(name)) for name in ("within", "between"))
            return Links(within=within, between=between, **fields)
        except (ValueError, TypeError, KeyError) as error:
            raise ArgumentError("tinsmith simulate", f"{found} does not describe a machine: {error}",
                                f"the fields of {FOLDER / 'h200.json'}") from None
