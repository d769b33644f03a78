"""Skip-grams with negative samples."""
from tinygrad import Tensor, nn

Tensor.manual_seed(14)
centre, context = nn.Embedding(12, 6), nn.Embedding(12, 6)
words = Tensor.arange(12).realize()
near = ((words + 1) % 12).realize()
opt = nn.optim.SGD(nn.state.get_parameters([centre, context]), lr=2.0)
losses = []
with Tensor.train():
    for _ in range(30):
        opt.zero_grad()
        v = centre(words)
        far = Tensor.randint(12, 3, high=12)
        good = (v * context(near)).sum(-1).logsigmoid()
        bad = Tensor.einsum("wd,wnd->wn", v, context(far)).neg().logsigmoid().sum(-1)
        loss = -(good + bad).mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert sum(losses[-5:]) < sum(losses[:5]), losses
