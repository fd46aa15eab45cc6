"""A convolution of 32 groups in fp16 on a V100, forward and its weight's gradient: channels last is 35 times slower."""

import torch

ITEM = 42
DEVICE = "V100"
SOURCE = "github.com/pytorch/pytorch/issues/34977"
TIMES = {"contiguous": ({}, (), 4.11), "channels last": ({"channels_last": True}, (), 143.0)}
GAINS = [("contiguous", "channels last", "nothing")]


def workload(batch_size=100, channels_last=False):
    form = torch.channels_last if channels_last else torch.contiguous_format
    images = torch.rand(batch_size, 2048, 14, 14, dtype=torch.float16).contiguous(memory_format=form)
    weight = torch.rand(2048, 64, 3, 3, dtype=torch.float16).contiguous(memory_format=form).requires_grad_()

    def step():
        torch.conv2d(images, weight, None, (2, 2), (1, 1), (1, 1), 32).sum().backward()

    return step
