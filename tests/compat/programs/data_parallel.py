"""Batches in parts on two devices, parameters whole on both, gradients added up between them."""
from tinygrad import Device, Tensor, TinyJit, nn

GPUS = tuple(f"{Device.DEFAULT}:{i}" for i in range(2))


class Model:
    def __init__(self):
        self.l1, self.bn, self.l2 = nn.Linear(6, 12), nn.BatchNorm(12), nn.Linear(12, 3)

    def __call__(self, x):
        return self.l2(self.bn(self.l1(x)).relu())


Tensor.manual_seed(37)
X, Y = Tensor.randn(64, 6).realize(), Tensor.randint(64, high=3).realize()
model = Model()
for p in nn.state.get_parameters(model):
    p.to_(GPUS)
opt = nn.optim.SGD(nn.state.get_parameters(model), lr=0.3)


@TinyJit
@Tensor.train()
def step(samples):
    opt.zero_grad()
    x, y = X[samples].shard(GPUS, axis=0), Y[samples].shard(GPUS, axis=0)
    loss = model(x).sparse_categorical_crossentropy(y).backward()
    return loss.realize(*opt.schedule_step()).to(Device.DEFAULT)


losses = [step(Tensor.arange(64).realize()).item() for _ in range(8)]
assert losses[-1] < losses[0], losses
assert model.l1.weight.device == tuple(Device.canonicalize(d) for d in GPUS)
a = Tensor([1.0, 2.0, 3.0, 4.0]).shard_(GPUS, axis=0)
assert a.dot(Tensor.ones(4).shard(GPUS, axis=0)).item() == 10
