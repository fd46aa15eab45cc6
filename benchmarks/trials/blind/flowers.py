import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)


def conv_block(cin, cout, stride):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
    )


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(
            conv_block(3, 32, 2), conv_block(32, 64, 2), conv_block(64, 128, 2),
        )

    def forward(self, x):
        return F.adaptive_avg_pool2d(self.stages(x), 1).flatten(1)


class FlowerClassifier(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, classes))

    def forward(self, x):
        features = self.backbone(x)
        return self.head(features)


# stand-in for torch.load("backbone.pt")
backbone = Backbone().eval()
model = FlowerClassifier(backbone, classes=17)

images = torch.rand(640, 3, 96, 96)
labels = torch.randint(0, 17, (640,))
images += labels.view(-1, 1, 1, 1) / 34

# only the new head is fine-tuned
optimizer = torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9)

for step in range(100):
    idx = torch.randint(0, 640, (16,))
    x, y = images[idx], labels[idx]
    flip = torch.rand(len(x)) < 0.5
    x[flip] = x[flip].flip(-1)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
print(f"done, loss {loss.item():.5f}")
