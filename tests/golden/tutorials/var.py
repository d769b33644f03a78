from tinygrad.tensor import Tensor
a = Tensor([1, 2, 3, 4])
b = a.var()
print(b.numpy())  # 输出 1.6666667
