"""GPT-2's shape: trained on one sentence, then generating with a cache of keys and values."""
from tinygrad import Tensor, TinyJit, Variable, nn

VOCAB, DIM, HEADS, MAX = 16, 16, 2, 12


class Attention:
    def __init__(self):
        self.c_attn, self.c_proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def __call__(self, x, start_pos, mask):
        b, t, _ = x.shape
        xqkv = self.c_attn(x).reshape(b, t, 3, HEADS, DIM // HEADS)
        q, k, v = (xqkv[:, :, i] for i in range(3))
        if start_pos is not None:
            if not hasattr(self, "cache_kv"):
                self.cache_kv = Tensor.zeros(2, b, MAX, HEADS, DIM // HEADS).contiguous().realize()
            self.cache_kv[:, :, start_pos:start_pos + t].assign(Tensor.stack(k, v)).realize()
            k, v = self.cache_kv[0][:, :start_pos + t], self.cache_kv[1][:, :start_pos + t]
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return self.c_proj(q.scaled_dot_product_attention(k, v, mask).transpose(1, 2).reshape(b, t, DIM))


class Block:
    def __init__(self):
        self.attn, self.ln_1, self.ln_2 = Attention(), nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.c_fc, self.c_proj = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def __call__(self, x, start_pos, mask):
        h = x + self.attn(self.ln_1(x), start_pos, mask)
        return (h + self.c_proj(self.c_fc(self.ln_2(h)).gelu())).contiguous()


class GPT:
    def __init__(self):
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(MAX, DIM)
        self.h, self.ln_f = [Block()], nn.LayerNorm(DIM)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight

    def __call__(self, tokens, start_pos=None):
        t = tokens.shape[1]
        pos = Tensor.arange(MAX)[0 if start_pos is None else start_pos:][:t] if start_pos is None else None
        pe = self.wpe(pos) if pos is not None else self.wpe.weight.shrink(((start_pos, start_pos + t), None))
        mask = Tensor.full((1, 1, t, t), float("-inf")).triu(1) if t > 1 else None
        x = self.wte(tokens) + pe
        for block in self.h:
            x = block(x, start_pos, mask)
        return self.lm_head(self.ln_f(x))


Tensor.manual_seed(8)
text = [1, 5, 9, 2, 7, 3, 11, 4, 6, 8]
model, tokens = GPT(), Tensor([text])
opt = nn.optim.AdamW(nn.state.get_parameters(model), lr=0.01)


@TinyJit
def step():
    with Tensor.train():
        opt.zero_grad()
        loss = model(tokens[:, :-1]).reshape(-1, VOCAB).sparse_categorical_crossentropy(tokens[:, 1:].reshape(-1))
        return loss.backward().realize(*opt.schedule_step())


losses = [step().item() for _ in range(40)]
assert losses[-1] < 0.2, losses[::8]
generate = TinyJit(lambda token, start: model(token, start)[:, -1].argmax(-1).realize())
out = [text[0]]
for i in range(len(text) - 1):
    out.append(generate(Tensor([[out[-1]]]), Variable("start_pos", 0, MAX - 2).bind(i)).item())
assert out == text, out
