import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
NUM_CLASSES, SIZE, BATCH = 150, 256, 4


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        chans = [3, 32, 64, 128]
        self.stem = nn.Sequential(*[
            nn.Sequential(nn.Conv2d(a, b, 3, stride=s, padding=1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b, s in zip(chans, chans[1:], (2, 2, 2))
        ])
        self.head = nn.Conv2d(128, NUM_CLASSES, 1)

    def forward(self, x):
        return self.head(self.stem(x))


class MeanIoU:
    def __init__(self, num_classes):
        self.num_classes = num_classes
        self.inter = torch.zeros(num_classes, dtype=torch.long)
        self.union = torch.zeros(num_classes, dtype=torch.long)

    def update(self, pred, gt):
        inter, union = [], []
        for c in range(self.num_classes):
            p, g = pred == c, gt == c
            inter.append((p & g).sum())
            union.append((p | g).sum())
        self.inter += torch.stack(inter)
        self.union += torch.stack(union)

    def compute(self):
        return (self.inter / self.union.clamp(min=1)).mean().item()


def batches(n):
    g = torch.Generator().manual_seed(5)
    for _ in range(n):
        coarse = torch.randint(0, NUM_CLASSES, (BATCH, 1, 16, 16), generator=g)
        gt = F.interpolate(coarse.float(), size=(SIZE, SIZE)).long().squeeze(1)
        yield torch.randn(BATCH, 3, SIZE, SIZE, generator=g), gt


model = Segmenter().eval()
metric = MeanIoU(NUM_CLASSES)
with torch.inference_mode():
    for images, gt in batches(55):
        logits = model(images)
        pred = logits.argmax(1, keepdim=True)
        pred = F.interpolate(pred.float(), size=gt.shape[-2:], mode="nearest").long().squeeze(1)
        metric.update(pred, gt)
print(f"mIoU {metric.compute():.5f}")
