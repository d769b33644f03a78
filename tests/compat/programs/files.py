"""Files as tensors: bytes read as numbers, an archive, a hash, a tensor on disk."""
import io
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from tinygrad import Tensor, dtypes
from tinygrad.dtype import _to_np_dtype
from tinygrad.helpers import fetch
from tinygrad.nn.state import TensorIO, tar_extract

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "Numbers.bin"
    path.write_bytes(np.arange(10, dtype=np.float32).tobytes())
    t = Tensor(path)
    assert t.dtype == dtypes.uint8 and t.shape == (40,)
    assert t[8:16].bitcast(dtypes.float32).to("CPU").tolist() == [2.0, 3.0]
    assert TensorIO(t).read(4) == b"\0\0\0\0" and fetch(str(path)) == path
    disk = Tensor.empty(4, 4, device=f"disk:{folder}/matrix", dtype=dtypes.int32)
    disk.assign(Tensor.arange(16).reshape(4, 4))
    disk[1].assign(Tensor([0, 0, 0, 0]))
    assert np.fromfile(f"{folder}/matrix", np.int32).reshape(4, 4)[1].sum() == 0 and disk[3, 3].item() == 15
    with tarfile.open(f"{folder}/a.tar", "w") as archive:
        info = tarfile.TarInfo("x.txt")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"hello"))
    assert bytes(tar_extract(Path(f"{folder}/a.tar"))["x.txt"].data()) == b"hello"
    assert Tensor.from_url(path.as_uri()).bitcast(dtypes.float32).to("CPU").sum().item() == 45
assert Tensor(b"Hello World!").keccak().data().hex().startswith("d0e47486")
assert len(Tensor(b"abc").hash().tolist()) == 16 and _to_np_dtype(dtypes.int16) is np.int16
