"""A mesh: processes, or devices of one process, in a grid with named axes; each line of it is a group."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.core.errors import ArgumentError
from tinsmith.core.object_lifetime import WeakTable
from tinsmith.distributed.world import ProcessGroup, split, world
from tinsmith.tensor.arguments import integer
from tinsmith.tensor.tensor import Tensor


class Mesh:
    """Processes, or devices of this process, in a grid with named axes.

    Attributes:
        shape: the size of each axis, by name.
        devices: of a mesh in one process; () if each place is a process.
        place: this process's number along each axis.
    """

    def __init__(self, shape: dict[str, int], devices: tuple[str, ...] = ()) -> None:
        self.shape, self.devices = shape, devices
        self.place = dict.fromkeys(shape, 0)
        self._groups: dict[str, ProcessGroup] = {}
        if not devices:
            own = world().group.rank
            grid = np.arange(world().group.size).reshape(tuple(shape.values()))
            at = [int(n) for n in np.argwhere(grid == own)[0]] if shape else []
            self.place = dict(zip(shape, at))
            for n, axis in enumerate(shape):
                line = tuple(int(r) for r in grid[tuple(slice(None) if k == n else i for k, i in enumerate(at))])
                self._groups[axis] = split(f"{'x'.join(map(str, grid.shape))}_{n}", line)

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.shape.items())
        return f"mesh({axes}{f', devices={self.devices}' if self.devices else ''})"

    def size(self, axis: str) -> int:
        """Return the size of an axis; 1 for one that the mesh does not have."""
        return self.shape.get(axis, 1)

    def group(self, axis: str) -> ProcessGroup:
        """Return this process's line of the mesh along an axis.

        Raises:
            ArgumentError: for an unknown axis, or in a mesh of devices, where nothing communicates.
        """
        if axis not in self.shape:
            raise ArgumentError("dist.mesh", f"no axis {axis!r} in {self}", f"one of {', '.join(self.shape)}")
        if self.devices:
            raise ArgumentError("dist.mesh", f"{self} is of devices of one process", "operations on whole tensors")
        return self._groups[axis]


Rule = tuple[str | None, ...]  # for each axis of a parameter, an axis of the mesh; () for none

_placed: Final[WeakTable[Tensor, tuple[Mesh, Rule]]] = WeakTable()  # part of a parameter → how it was divided
_current: list[Mesh] = []
_made: dict[tuple[Any, ...], Mesh] = {}


def mesh(devices: Sequence[str] | None = None, **axes: int) -> Mesh:
    """Return the mesh of all processes with these axes, and make it the one whose axes collectives know.

    Neighbouring ranks are neighbours along the last axis: give the axis that communicates most last.

    >>> mesh(data=1, model=1)
    mesh(data=1, model=1)
    >>> mesh(model=2, devices=("CPU", "CPU:1")).size("model")
    2

    Args:
        axes: sizes by name; one may be -1: what the others leave.
        devices: names of devices of this process, instead of the processes; then one axis may be larger than 1.

    Raises:
        ArgumentError: if the sizes do not multiply to the number of processes or devices.
    """
    names = tuple(Device.canonicalize(d) for d in devices or ())
    count = len(names) or world().group.size
    sizes = {name: integer("dist.mesh", name, size, least=-1) for name, size in axes.items()}
    known = math.prod(s for s in sizes.values() if s > 0)
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) == 1 and known and count % known == 0:
        sizes[free[0]] = count // known
    what = "devices" if names else "processes"
    if math.prod(sizes.values()) != count or min(sizes.values(), default=1) < 1:
        raise ArgumentError("dist.mesh", f"axes {axes} for {count} {what}", f"sizes whose product is {count}")
    if names and sum(size > 1 for size in sizes.values()) > 1:
        raise ArgumentError("dist.mesh", f"axes {axes} over devices of one process",
                            "one axis over the devices, or processes for the other")
    key = (names, tuple(sizes.items()))
    if key not in _made:
        _made[key] = Mesh(sizes, names)
    _current[:] = [_made[key]]
    return _made[key]


def current() -> Mesh | None:
    """Return the mesh that was made last."""
    return _current[0] if _current else None


def group_of(op: str, axis: str | None) -> ProcessGroup:
    """Return the processes along an axis of the current mesh; all processes for None.

    Raises:
        ArgumentError: if there is no mesh with that axis.
    """
    if axis is None:
        return world().group
    if not _current:
        raise ArgumentError(op, f"axis={axis!r} without a mesh", f"dist.mesh({axis}={world().group.size}) first")
    return _current[0].group(axis)


def note_placement(t: Tensor, mesh: Mesh, rule: Rule) -> None:
    """Record that a parameter is this process's part of one that was divided over a mesh."""
    _placed[t] = (mesh, rule)


def placement(t: Tensor) -> tuple[Mesh, Rule] | None:
    """Return the mesh and the axes over which a parameter was divided; None for a whole one."""
    return _placed[t] if t in _placed else None  # noqa: SIM401  get() has no None of another type


def divided(t: Tensor) -> tuple[ProcessGroup, ...]:
    """Return the groups among which a parameter is divided; () for a whole one."""
    mesh, rule = placement(t) or (None, ())
    return () if mesh is None else tuple(mesh.group(a) for a in rule if a is not None and mesh.size(a) > 1)
