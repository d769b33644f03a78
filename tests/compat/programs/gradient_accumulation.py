"""Small batches whose gradients add up give the step of the large one."""
from tinygrad import Tensor, nn

Tensor.manual_seed(39)
x, y = Tensor.randn(32, 5).realize(), Tensor.randn(32, 1).realize()
a = nn.Linear(5, 1)
b = nn.Linear(5, 1)
nn.state.load_state_dict(b, {k: v.clone() for k, v in nn.state.get_state_dict(a).items()}, verbose=False)
with Tensor.train():
    opt = nn.optim.SGD(nn.state.get_parameters(a), lr=0.1)
    opt.zero_grad()
    (a(x) - y).square().mean().backward()
    opt.step()
    opt = nn.optim.SGD(nn.state.get_parameters(b), lr=0.1)
    opt.zero_grad()
    for i in range(0, 32, 8):
        ((b(x[i:i + 8]) - y[i:i + 8]).square().mean() / 4).backward()
        Tensor.realize(*[p.grad for p in opt.params])
    opt.step()
assert a.weight.isclose(b.weight, atol=1e-6).all().item() and a.bias.allclose(b.bias, atol=1e-6).item()
