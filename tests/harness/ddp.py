"""A training program of several gloo ranks for the tests; what a rank does besides is its argument."""

import atexit
import os
import signal
import sys

import torch
from torch import distributed

distributed.init_process_group("gloo")
rank = distributed.get_rank()
told = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "OMP_NUM_THREADS")
values = [os.environ[name] for name in told]
# In one piece each: the ranks share the streams.
sys.stdout.write(f"{rank} {values} {sorted(name for name in os.environ if 'TORCH' in name)}\n")
sys.stderr.write(f"{rank} {sys.argv[1:]} {sys.path[0]} {__name__}\n")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    if sys.argv[2:] == ["kill"] and rank == 1 and step == 10:
        os.kill(os.getpid(), signal.SIGKILL)
# torch 2.13 can lock up where a group is destroyed right after its last collective.
distributed.barrier()
distributed.destroy_process_group()


def leave() -> None:
    """Ends this rank before Python takes torch apart, whose threads then abort now and again (torch 2.13, gloo)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


atexit.register(leave)
