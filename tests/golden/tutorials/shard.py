from tinygrad.tensor import Tensor

GPUS = ['METAL:0', 'METAL:1']

a = Tensor([1.0, 2.0, 3.0, 4.0]).shard_(GPUS, axis=0)
b = Tensor([5.0, 6.0, 7.0, 8.0]).shard_(GPUS, axis=0)
c = a.dot(b)
d = c.numpy()
print(d)
