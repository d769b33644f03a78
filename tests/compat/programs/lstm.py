"""An LSTM over characters, cell by cell."""
from tinygrad import Tensor, nn


class CharLSTM:
    def __init__(self, vocab, dim=12):
        self.embed, self.cell, self.head = nn.Embedding(vocab, dim), nn.LSTMCell(dim, dim), nn.Linear(dim, vocab)

    def __call__(self, x):
        hc, out = None, []
        for t in range(x.shape[1]):
            hc = self.cell(self.embed(x[:, t]), hc)
            out.append(self.head(hc[0]))
        return Tensor.stack(*out, dim=1)


Tensor.manual_seed(12)
text = "hello hi"
letters = sorted(set(text))
ids = Tensor([[letters.index(c) for c in text]])
model = CharLSTM(len(letters))
opt = nn.optim.Adam(nn.state.get_parameters(model), lr=0.05)
losses = []
with Tensor.train():
    for _ in range(15):
        opt.zero_grad()
        loss = model(ids[:, :-1]).flatten(0, 1).sparse_categorical_crossentropy(ids[:, 1:].flatten())
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < 0.5 * losses[0], losses
