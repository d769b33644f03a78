"""Connectionist temporal classification, by the forward algorithm in logarithms."""
import numpy as np
from tinygrad import Tensor, nn


def ctc(log_probs, label):
    extended = [0]
    for c in label:
        extended += [c, 0]
    skips = [i > 1 and extended[i] and extended[i] != extended[i - 2] for i in range(len(extended))]
    skip = Tensor(np.where(skips, 0.0, -1e4).astype(np.float32))
    emit = log_probs[:, extended]
    first = Tensor(np.array([0.0, 0.0] + [-1e4] * (len(extended) - 2), np.float32))
    alpha = emit[0] + first
    for t in range(1, log_probs.shape[0]):
        one = alpha.pad(((1, 0),), value=-1e4)[:-1]
        two = alpha.pad(((2, 0),), value=-1e4)[:-2] + skip
        alpha = alpha.stack(one, two).logsumexp(0) + emit[t]
    return -alpha[-2:].logsumexp()


Tensor.manual_seed(19)
frames = Tensor.randn(8, 6).realize()
net = [nn.Linear(6, 12), Tensor.relu, nn.Linear(12, 4)]
opt = nn.optim.Adam(nn.state.get_parameters(net), lr=0.03)
label, losses = [1, 3, 3, 2], []
with Tensor.train():
    for _ in range(20):
        opt.zero_grad()
        loss = ctc(frames.sequential(net).log_softmax(), label)
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < 0.5 * losses[0], losses
best = frames.sequential(net).argmax(-1).tolist()
decoded = [c for i, c in enumerate(best) if c and (i == 0 or c != best[i - 1])]
assert set(decoded) <= {1, 2, 3}
