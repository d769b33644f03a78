def kernel_r_2(data0, data1, data2, gid, lid):
  acc0 = 0
  for i in range(2):
    val0 = data1[i]
    val1 = data2[i]
    acc0 = val0 * val1 + acc0
  data0[0] = acc0
out = [0]
kernel_r_2(out, [1, 2], [3, 4], None, None)
from tinygrad import Tensor
assert out[0] == Tensor([1, 2]).dot(Tensor([3, 4])).item()
print(out[0])
