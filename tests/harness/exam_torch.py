"""Torch programs that a plain interpreter and `bottleneck run` must treat alike: 22 ways to use torch and to fail."""

# The head of most: a model small enough that its steps are quick, and a training loop. One thread: in a fork OpenMP
# would wait for ever for those that only the parent has, under plain python too, wherever a product uses two.
HEAD = """
    import os, sys, torch
    from torch import nn
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(32, 8), torch.randn(32, 1)

    def train(steps, model=model, optimizer=optimizer):
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        return loss.item()

"""

TORCH_SCRIPTS = {
    "trains": "    print(train(60))\n",
    "is_short": "    print(train(2))\n",
    "raises_in_a_step": "    train(26)\n    model(torch.ones(1, 3))\n",
    "runs_out_of_memory": """
    train(30)
    try:
        torch.empty(2**60)
    except RuntimeError as error:
        print("caught", str(error).split("allocate")[-1])
    print(train(10))
    bytearray(2**62)
""",
    "faults": "    import ctypes\n    print(train(45), flush=True)\n    ctypes.string_at(0)\n",
    "leaves_at_once": "    print(train(60), flush=True)\n    os._exit(6)\n",
    "exits_in_the_window": "    train(28)\n    sys.exit('enough')\n",
    "forks": """
    print(train(24), flush=True)
    for leave in (sys.exit, os._exit):
        child = os.fork()
        if child == 0:
            print(train(3), flush=True)
            leave(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    print(train(20))
""",
    "loads_by_fork": """
    data = torch.utils.data.TensorDataset(inputs, targets)
    for epoch in range(4):
        for batch, wanted in torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, shuffle=True):
            optimizer.zero_grad()
            loss = (model(batch) - wanted).square().mean()
            loss.backward()
            optimizer.step()
        print(loss.item())
""",
    "loads_by_spawn_and_keeps_its_workers": """
    from torch.utils.data import DataLoader, TensorDataset

    if __name__ == "__main__":
        loader = DataLoader(
            TensorDataset(inputs), 8, num_workers=1, multiprocessing_context="spawn", persistent_workers=True
        )
        for epoch in range(10):
            for (batch,) in loader:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
        print(model[0].bias.sum().item())
""",
    "spawns_ranks": """
    import gc
    import torch.distributed, torch.multiprocessing

    def rank(number, file):
        torch.distributed.init_process_group("gloo", init_method="file://" + file, rank=number, world_size=2)
        torch.set_num_threads(1)
        parallel = nn.parallel.DistributedDataParallel(model)
        loss = train(30, parallel, torch.optim.SGD(parallel.parameters(), lr=0.01))
        if number == 0:
            print(loss, flush=True)
        # The reducer must not be the last to hold the group: torch 2.13 frees the group of a reducer with the GIL held
        # and joins gloo's thread, which waits for the GIL to free the work of the last collective.
        del parallel
        gc.collect()
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()

    if __name__ == "__main__":
        torch.multiprocessing.spawn(rank, (os.path.abspath("meeting"),), nprocs=2)
        print("joined")
""",
    "trains_in_a_thread": """
    import threading
    thread = threading.Thread(target=lambda: print(train(60)))
    thread.start()
    thread.join()
""",
    "compiles": """
    compiled = torch.compile(model, backend="aot_eager")
    print(train(60, compiled))
""",
    "becomes_another": """
    train(26)
    if len(sys.argv) == 1:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, __file__, "again"])
    print(sys.argv[1:], train(3))
""",
    "infers": """
    model.eval()
    with torch.inference_mode():
        for _ in range(60):
            result = model(inputs)
    print(result.sum().item())
""",
    "sets_variables_first": """
    print(torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], sorted(k for k in os.environ if "KINETO" in k))
    torch.set_num_threads(2)
    print(torch.get_num_threads(), train(60))
""",
    "casts_automatically": """
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print(loss.item(), scaler.get_scale())
""",
    "searches_lines": """
    searcher = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure():
        searcher.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    for _ in range(40):
        loss = searcher.step(closure)
    print(loss.item())
""",
    "plays_two_against_each_other": """
    critic = nn.Linear(1, 1)
    second = torch.optim.Adam(critic.parameters())
    for _ in range(40):
        second.zero_grad()
        (critic(targets).mean() - critic(model(inputs).detach()).mean()).backward()
        second.step()
        optimizer.zero_grad()
        critic(model(inputs)).mean().backward()
        optimizer.step()
    print(critic.weight.item())
""",
    "accumulates_and_schedules": """
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    for index in range(160):
        (nn.functional.mse_loss(model(inputs), targets) / 4).backward()
        if index % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            schedule.step()
    print(schedule.get_last_lr(), model[0].weight.grad.sum().item())
""",
    "scripts_and_saves": """
    import io, warnings
    warnings.simplefilter("ignore")
    scripted = torch.jit.script(model)
    print(train(60, scripted))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    print(len(buffer.getvalue()), sorted(torch.load(io.BytesIO(buffer.getvalue()))))
    print(len(model._forward_pre_hooks), len(torch.nn.modules.module._global_forward_pre_hooks) < 2)
""",
    "has_a_module_of_our_name": """
    from bottleneck import Bottleneck
    print(train(60, nn.Sequential(model, Bottleneck())))
""",
}

# What differs by design, with the reason; everything else is equal to the byte.
EXCEPTIONS: dict[str, str] = {}

# What leaves no trace, with the reason.
UNTRACED: dict[str, str] = {}


def program(name: str) -> str:
    """The text of one of the scripts."""
    head = "    import os\n    os.environ['OMP_NUM_THREADS'] = '1'\n" if name == "sets_variables_first" else ""
    return head + HEAD + TORCH_SCRIPTS[name]
