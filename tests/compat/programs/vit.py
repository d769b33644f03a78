"""A vision transformer: patches, a class token, attention."""
from tinygrad import Tensor, nn


class ViT:
    def __init__(self, dim=16):
        self.embedding = (Tensor.uniform(dim, 3, 4, 4, low=-0.2, high=0.2), Tensor.zeros(dim))
        self.cls, self.pos = Tensor.ones(1, 1, dim), Tensor.ones(1, 5, dim)
        self.norm1, self.norm2, self.encoder_norm = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = [nn.Linear(dim, 32), Tensor.gelu, nn.Linear(32, dim)]
        self.head = nn.Linear(dim, 2)

    def patch_embed(self, x):
        x = x.conv2d(*self.embedding, stride=4)
        return x.reshape(shape=(x.shape[0], x.shape[1], -1)).permute(order=(0, 2, 1))

    def forward(self, x):
        ce = self.cls.add(Tensor.zeros(x.shape[0], 1, 1))
        x = ce.cat(self.patch_embed(x), dim=1).add(self.pos)
        q, k, v = (t.rearrange("b n (h d) -> b h n d", h=4) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        x = x + self.proj(q.scaled_dot_product_attention(k, v).rearrange("b h n d -> b n (h d)"))
        x = x + self.norm2(x).sequential(self.mlp)
        return self.head(self.encoder_norm(x)[:, 0])


Tensor.manual_seed(11)
x = Tensor.randn(16, 3, 8, 8).realize()
y = (x.mean((1, 2, 3)) > 0).cast("int32").realize()
model = ViT()
opt = nn.optim.Adam(nn.state.get_parameters(model), lr=0.01)
losses = []
with Tensor.train():
    for _ in range(5):
        opt.zero_grad()
        loss = model.forward(x).cross_entropy(y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < losses[0], losses
