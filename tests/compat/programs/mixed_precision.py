"""Half precision inside, a scaled loss, gradients clipped by their norm."""
from tinygrad import Context, Tensor, dtypes, nn

Tensor.manual_seed(38)
with Context(DEFAULT_FLOAT="HALF"):
    net = [nn.Linear(8, 16), Tensor.relu, nn.Linear(16, 1)]
    assert Tensor.rand(2).dtype == dtypes.half
params = nn.state.get_parameters(net)
assert all(p.dtype == dtypes.half for p in params) and Tensor.rand(2).dtype == dtypes.float
x = Tensor.randn(32, 8).realize()
y = x.sum(1, keepdim=True).tanh().realize()
SCALE, losses = 128.0, []
opt = nn.optim.SGD(params, lr=0.1)
with Context(TRAINING=1):
    for _ in range(20):
        opt.zero_grad()
        loss = (x.cast(dtypes.default_float).half().sequential(net).float() - y).square().mean()
        (loss * SCALE).backward()
        norm = Tensor.stack(*[p.grad.float().square().sum() for p in opt.params]).sum().sqrt() / SCALE
        for p in opt.params:
            p.grad = (p.grad / SCALE * (1.0 / (norm + 1e-6)).minimum(1.0)).cast(p.grad.dtype)
        opt.step()
        losses.append(loss.item())
assert losses[-1] < 0.7 * losses[0], losses
fp8 = x.cast(dtypes.fp8e4m3)
assert fp8.dtype.itemsize == 1 and (fp8.float() - x).abs().max().item() < 0.3
assert dtypes.is_float(fp8.dtype) and dtypes.finfo(dtypes.half)[0] == 5
