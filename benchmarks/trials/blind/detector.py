import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(4)


def conv(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


class CenterHead(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.body = nn.Sequential(conv(3, 16, 2), conv(16, 32, 2), conv(32, 32))
        self.heat = nn.Conv2d(32, classes, 1)
        self.size = nn.Conv2d(32, 2, 1)

    def forward(self, x):
        h = self.body(x)
        return torch.sigmoid(self.heat(h)), self.size(h)


def find_peaks(heat, k=25, top=50):
    local = F.max_pool2d(heat, k, stride=1, padding=k // 2)
    heat = heat * (local == heat)
    n, c, h, w = heat.shape
    score, where = heat.view(n, -1).topk(top)
    return score, where // (h * w), (where % (h * w)) // w, where % w


def gather_sizes(size, ys, xs):
    n = torch.arange(size.shape[0]).unsqueeze(1)
    return size.permute(0, 2, 3, 1)[n, ys, xs]


model = CenterHead().eval()
found, area = 0, 0.0
with torch.inference_mode():
    for frame in range(70):
        image = torch.rand(2, 3, 512, 512)
        heat, size = model(image)
        score, label, ys, xs = find_peaks(heat)
        wh = gather_sizes(size, ys, xs)
        keep = score > 0.5
        found += int(keep.sum())
        area += float(wh.abs().prod(-1)[keep].sum())
print("objects", found, "area", area)
