"""An encoder of sound and a decoder of words that looks at it: Conv1d, cross attention, sinusoids."""
import numpy as np
from tinygrad import Tensor, nn

DIM = 12


class Attention:
    def __init__(self):
        self.query, self.key, self.value = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM)
        self.out = nn.Linear(DIM, DIM)

    def __call__(self, x, xa=None, mask=None):
        q, k, v = self.query(x), self.key(x if xa is None else xa), self.value(x if xa is None else xa)
        q, k, v = (t.reshape(t.shape[0], t.shape[1], 2, -1).permute(0, 2, 1, 3) for t in (q, k, v))
        return self.out(Tensor.scaled_dot_product_attention(q, k, v, mask).permute(0, 2, 1, 3).flatten(start_dim=2))


class Whisper:
    def __init__(self):
        self.conv1, self.conv2 = nn.Conv1d(8, DIM, 3, padding=1), nn.Conv1d(DIM, DIM, 3, stride=2, padding=1)
        angles = np.arange(8)[:, None] / 10000 ** (np.arange(DIM // 2) / (DIM // 2))
        self.sin = Tensor(np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)).is_param_(False)
        self.enc, self.self_attn, self.cross = Attention(), Attention(), Attention()
        self.norms, self.embed = [nn.LayerNorm(DIM) for _ in range(4)], nn.Embedding(10, DIM)
        self.pos = Tensor.empty(6, DIM).uniform(6, DIM, low=-0.1, high=0.1)

    def encode(self, mel):
        x = self.conv2(self.conv1(mel).gelu()).gelu().permute(0, 2, 1) + self.sin
        return x + self.enc(self.norms[0](x))

    def decode(self, tokens, audio):
        t = tokens.shape[1]
        mask = Tensor.full((t, t), float("-inf")).triu(1)
        x = self.embed(tokens) + self.pos[:t]
        x = x + self.self_attn(self.norms[1](x), mask=mask)
        x = x + self.cross(self.norms[2](x), xa=audio)
        return self.norms[3](x) @ self.embed.weight.T


Tensor.manual_seed(20)
model, mel = Whisper(), Tensor.randn(2, 8, 16).realize()
tokens = Tensor([[1, 3, 5, 7, 9], [1, 2, 4, 6, 8]])
opt = nn.optim.Adam(nn.state.get_parameters(model), lr=0.01)
losses = []
with Tensor.train():
    for _ in range(6):
        opt.zero_grad()
        loss = model.decode(tokens[:, :-1], model.encode(mel)).sparse_categorical_crossentropy(tokens[:, 1:])
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < 0.95 * losses[0], losses
