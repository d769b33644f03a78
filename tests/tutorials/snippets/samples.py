from tinygrad.tensor import Tensor
GPUS = ['METAL:0', 'METAL:1']
X_train, Y_train, samples = Tensor.ones(10, 3).contiguous(), Tensor.arange(10), Tensor([1, 8, 3, 5])
Xt, Yt = X_train[samples].shard_(GPUS, axis=0), Y_train[samples].shard_(GPUS, axis=0)
print(Xt.shape, Xt.device, Yt.numpy())
