"""Words drawn from the most likely ones; a fixed number of hits from a mask."""
from tinygrad import Tensor, TinyJit

Tensor.manual_seed(46)


@TinyJit
def sample(logits, k=4, temperature=0.8):
    values, places = (logits / temperature).topk(k)
    chosen = values.softmax().multinomial()
    return places.gather(-1, chosen).squeeze(-1).realize()


logits = Tensor.randn(3, 20).realize()
best = logits.topk(4)[1].numpy()
for _ in range(5):
    drawn = sample(logits).numpy()
    assert all(d in row for d, row in zip(drawn, best))
p = logits.softmax().sort(descending=True)[0].cumsum(1)
assert (p[:, -1] - 1).abs().max().item() < 1e-5
x = Tensor([3, 0, 5, 0, 7])
assert x.nonzero(size=4, fill_value=-1).tolist() == [[0], [2], [4], [-1]]
assert x.masked_select(x > 0, size=2).tolist() == [3, 5] and x.masked_select(x > 4).tolist() == [5, 7]
assert x.pad_to(6).shrink_to(2).tolist() == [3, 0] and x.const_like(2).tolist() == [2] * 5
