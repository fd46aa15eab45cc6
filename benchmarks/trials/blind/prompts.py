import torch
import torch.nn as nn

torch.manual_seed(4)

VOCAB = 32000
YES, NO = 3763, 1939


class TinyLM(nn.Module):
    def __init__(self, dim=160, layers=2, heads=4, max_len=128):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, batch_first=True, norm_first=True, dropout=0.0)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, VOCAB, bias=False)

    def forward(self, ids):
        n = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        h = self.tok(ids) + self.pos[:n]
        h = self.norm(self.blocks(h, mask=mask, is_causal=True))
        return self.lm_head(h)


@torch.inference_mode()
def classify(model, prompts):
    logits = model(prompts)
    answer = logits[:, -1, [NO, YES]]
    return answer.softmax(-1)[:, 1]


def prompt_batches(n, size=6, length=112):
    gen = torch.Generator().manual_seed(7)
    for _ in range(n):
        yield torch.randint(0, VOCAB, (size, length), generator=gen)


model = TinyLM().eval()
scores = []
for batch in prompt_batches(100):
    scores.append(classify(model, batch))
scores = torch.cat(scores)
print("positive rate", (scores > 0.5).float().mean().item(), "mean", round(scores.mean().item(), 4))
