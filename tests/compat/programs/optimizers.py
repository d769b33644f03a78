"""Every optimizer brings a quadratic down; a group of two steps together."""
from tinygrad import Context, Tensor
from tinygrad.nn import optim

matrix = Tensor([[3.0, 1.0], [1.0, 2.0]])


def run(make, steps=25):
    w = Tensor([[2.0, -3.0], [1.0, 4.0]])
    opt = make([w])
    first = last = None
    with Context(TRAINING=1):
        for _ in range(steps):
            opt.zero_grad()
            loss = ((w @ matrix) * w).sum().backward()
            opt.step()
            last = loss.item()
            first = last if first is None else first
    return first, last


for make in (lambda p: optim.SGD(p, lr=0.02), lambda p: optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
             lambda p: optim.SGD(p, lr=0.02, momentum=0.5, classic=True, weight_decay=0.01, fused=True),
             lambda p: optim.Adam(p, lr=0.1, device="CPU"), lambda p: optim.AdamW(p, lr=0.1, fused=False),
             lambda p: optim.LAMB(p, lr=0.05), lambda p: optim.LARS(p, lr=10.0), lambda p: optim.Muon(p, lr=0.1),
             lambda p: optim.OptimizerGroup(optim.SGD(p, lr=0.02))):
    first, last = run(make)
    assert last < 0.5 * first, (first, last)
assert isinstance(optim.SGD([Tensor([1.0])]), optim.Optimizer) and isinstance(optim.Adam([Tensor([1.0])]), optim.LAMB)
