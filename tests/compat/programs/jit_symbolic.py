"""One captured function for many lengths, and one that counts."""
import numpy as np
from tinygrad import Tensor, TinyJit, Variable
from tinygrad.engine.jit import JitError


@TinyJit
def attend(q, cache, n):
    k = cache[:n]
    return ((q @ k.transpose()).softmax() @ k).realize()


Tensor.manual_seed(36)
cache, q = Tensor.randn(10, 4).realize(), Tensor.randn(1, 4).realize()
for n in (3, 4, 5, 9, 1):
    got = attend(q, cache, Variable("n", 1, 10).bind(n)).numpy()
    c = cache.numpy()[:n]
    e = np.exp(q.numpy() @ c.T)
    np.testing.assert_allclose(got, e / e.sum() @ c, rtol=1e-4)
assert attend.captured is not None and attend.captured.jit_cache and issubclass(JitError, Exception)

step = TinyJit(lambda x, w: (x * w).sum().realize(), prune=True)
w = Tensor([1.0, 2.0])
assert [step(Tensor([float(i), 1.0]).realize(), w).item() for i in range(4)] == [2.0, 3.0, 4.0, 5.0]
step.reset()
assert step.captured is None and step.cnt == 0
