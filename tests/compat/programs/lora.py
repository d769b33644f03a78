"""Low-rank updates of weights that are frozen."""
from tinygrad import Tensor, nn
from tinygrad.nn.state import get_parameters, get_state_dict


class LoRA:
    def __init__(self, base, rank=2):
        out, inside = base.weight.shape
        self.base, self.a, self.b = base, Tensor.kaiming_uniform(rank, inside), Tensor.zeros(out, rank)

    def __call__(self, x):
        return self.base(x) + x.linear(self.a.transpose()).linear(self.b.transpose())


Tensor.manual_seed(40)
model = [nn.Linear(6, 6), Tensor.relu, nn.Linear(6, 2)]
for p in get_parameters(model):
    p.is_param_(False)
model = [LoRA(m) if isinstance(m, nn.Linear) else m for m in model]
frozen = {k: v.numpy().copy() for k, v in get_state_dict(model).items() if ".base." in k}
trained = [p for p in get_parameters(model) if p.is_param]
assert len(trained) == 4
x, y = Tensor.randn(16, 6).realize(), Tensor.randint(16, high=2).realize()
opt = nn.optim.Adam(trained, lr=0.05)
losses = []
with Tensor.train():
    for _ in range(15):
        opt.zero_grad()
        losses.append(x.sequential(model).cross_entropy(y).backward().item())
        opt.step()
assert losses[-1] < losses[0]
assert all((get_state_dict(model)[k].numpy() == v).all() for k, v in frozen.items())
