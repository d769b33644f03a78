"""Tensors of data outside of the program: a file, a memory address, a URL."""
# mypy: disable-error-code=misc
# ``cls`` is the Tensor that this class is mixed into.
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.backend.device import Device, DeviceName
from tinsmith.backend.memory import Buffer, borrowed
from tinsmith.core.download import fetched
from tinsmith.core.dtypes import DTypeLike, dtypes, to_dtype
from tinsmith.core.lazy_import import Late
from tinsmith.ir import Ops, UOp
from tinsmith.tensor.arguments import integer
from tinsmith.tensor.base import device_name, leaf
from tinsmith.tensor.helpers import product, sizes
from tinsmith.tensor.interop.dlpack import HOST

if TYPE_CHECKING:
    import gzip

    from tinsmith.tensor.tensor import Tensor
else:
    gzip = Late("gzip")


class Sources:
    """``from_blob`` and ``from_url``; ``Tensor(Path(...))`` and the device ``DISK:path`` are those of a file."""

    __slots__ = ()

    @classmethod
    def from_blob(cls: type[Tensor], ptr: int, shape: Any, dtype: DTypeLike | None = None,
                  device: DeviceName | None = None) -> Tensor:
        """Return a tensor over memory at address ``ptr`` of this process, without a copy on a device of the host.

        The memory must stay valid as long as tensors refer to it; later writes to it are visible. On a device with
        memory of its own, or if the address is not aligned, the present content is copied.

        >>> numbers = (ctypes.c_float * 2)(1.5, 2.5)
        >>> x = Tensor.from_blob(ctypes.addressof(numbers), (2,)); numbers[0] = 9.0; x.tolist()
        [9.0, 2.5]
        """
        kind = dtypes.default_float if dtype is None else to_dtype(dtype)
        wanted = sizes("from_blob", (shape,))
        nbytes = product(wanted) * kind.itemsize
        address = integer("from_blob", "ptr", ptr, least=1)
        target = device_name(device)
        if not nbytes:
            return cls.empty(wanted, dtype=kind, device=target)
        if address % kind.itemsize == 0 and "," not in target and Device[target].dlpack == HOST:
            there = borrowed(target, product(wanted), kind, address, None)
            return cls._wrap(UOp(Ops.BUFFER, kind, (), there).reshape(wanted), target)
        block = (ctypes.c_uint8 * nbytes).from_address(address)
        buffer = Buffer("NPY", product(wanted), kind, opaque=np.array(np.frombuffer(block, np.uint8)))
        return cls._wrap(leaf(UOp(Ops.BUFFER, kind, (), buffer).copy_to(target).reshape(wanted)), target)

    @classmethod
    def from_url(cls: type[Tensor], url: str, gunzip: bool = False, device: DeviceName | None = None) -> Tensor:
        """Return the bytes at ``url`` as a uint8 tensor; the file is downloaded once and cached.

        Args:
            gunzip: decompress the file.

        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "x"; _ = path.write_bytes(b"abc")
        >>> Tensor.from_url(path.as_uri()).tolist()
        [97, 98, 99]

        Raises:
            OSError: if the download fails.
        """
        path = fetched(url)
        if gunzip:
            return cls(gzip.decompress(path.read_bytes()), device=device)
        return cls(path, device=device)
