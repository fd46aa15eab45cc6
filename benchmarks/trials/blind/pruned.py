import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
DIM, CLASSES, BATCH, KEEP = 768, 50, 64, 0.35
N_BATCHES = 400


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


class PrunedLinear(nn.Module):
    def __init__(self, linear, keep):
        super().__init__()
        w = linear.weight.detach()
        threshold = w.abs().flatten().kthvalue(int(w.numel() * (1 - keep))).values
        w = torch.where(w.abs() > threshold, w, torch.zeros_like(w))
        self.weight = w.to_sparse()
        self.register_buffer("bias", linear.bias.detach())

    def forward(self, x):
        return (self.weight @ x.t()).t() + self.bias


def prune(model, keep):
    for i, layer in enumerate(model.layers):
        model.layers[i] = PrunedLinear(layer, keep)
    return model


model = prune(Ranker(), KEEP).eval()
hits = torch.zeros(CLASSES)
with torch.inference_mode():
    for _ in range(N_BATCHES):
        x = torch.randn(BATCH, DIM)
        x = F.layer_norm(x, (DIM,))
        top = model(x).topk(5, dim=1).indices
        hits += torch.bincount(top.flatten(), minlength=CLASSES)
print(f"most frequent class {hits.argmax().item()} of {int(hits.sum())} hits")
