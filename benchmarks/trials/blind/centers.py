import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
np.random.seed(5)

# keypoint-style detector: one heatmap per class at stride 2
IMG, OUT, CLASSES = 192, 96, 8


def sample_objects(n_images):
    ann = []
    for _ in range(n_images):
        k = np.random.randint(110, 150)
        ann.append((np.random.uniform(0, OUT, (k, 2)), np.random.uniform(1.0, 2.0, k), np.random.randint(0, CLASSES, k)))
    return ann


ys, xs = np.mgrid[0:OUT, 0:OUT].astype(np.float64)


def draw_target(centers, sigmas, classes):
    heat = np.zeros((CLASSES, OUT, OUT))
    for (cx, cy), s, c in zip(centers, sigmas, classes):
        g = np.exp(-((xs - cx) ** 2 + (ys - cy) ** 2) / (2 * s * s))
        heat[c] = np.maximum(heat[c], g)
    return heat


def focal(pred, gt):
    p = pred.sigmoid().clamp(1e-4, 1 - 1e-4)
    pos = (gt > 0.9).float()
    a = -(1 - p).pow(2) * p.log() * pos
    b = -(1 - gt).pow(4) * p.pow(2) * (1 - p).log() * (1 - pos)
    return (a.sum() + b.sum()) / pos.sum().clamp(min=1)


net = nn.Sequential(
    nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(),
    nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(),
    nn.Conv2d(24, CLASSES, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
images = torch.rand(48, 3, IMG, IMG)
annots = sample_objects(48)

for it in range(90):
    batch = np.random.randint(0, len(images), 4)
    gt = np.stack([draw_target(*annots[b]) for b in batch])
    gt = torch.from_numpy(gt).float()
    loss = focal(net(images[batch]), gt)
    opt.zero_grad()
    loss.backward()
    opt.step()
print("focal loss", round(loss.item(), 3))
