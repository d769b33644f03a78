# 在 Tinygrad 中
from tinygrad.tensor import Tensor, dtypes

Tensor.manual_seed(0)
a = Tensor.rand(256, 256).cast(dtypes.float16)
b = Tensor.rand(256, 256).cast(dtypes.float16)
c = a.matmul(b)
print(c.shape, c.dtype, c.realize().numpy().dtype)  # added: the tutorial computes nothing
