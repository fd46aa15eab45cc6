"""Whose code a Python frame runs: the user's own, a library's or the machinery's; used by ``frames``."""

import re
import sys

MODULE_PREFIX = "nn.Module: "
MODULE, OWN, MODEL_LIBRARY, PLUMBING = 0, 1, 2, 3

# 'path/file.py(57): function', as Kineto writes a Python frame. The longest real one is far below the limit.
_FRAME = re.compile(r"^(?P<path>[^\n]{1,1000}?)\((?P<line>\d{1,9})\): ")

# Kineto cuts entries of sys.path off, so a library shows as 'torch/nn/…' or, where it was not cut, with its folder.
# Generated code has a name in angle brackets; so do notebook cells of older IPython, which are the user's own.
# What Inductor generates is named by a hash.
_LIBRARY_MARKS = re.compile(
    "(site|dist)-packages/|lib/python|(^|/)bottleneck/harness/|/torchinductor_|(^|/)c[a-z2-7]{51}[.]py"
    "|<(?!ipython-input|stdin)"
)
_MACHINERY = (
    "torch torchgen functorch triton numpy pandas scipy tqdm nvidia apex deepspeed accelerate lightning"
    " pytorch_lightning lightning_fabric lightning_utilities ignite fsspec ipykernel IPython traitlets tornado zmq"
    " jupyter_client torchmetrics typeguard jaxtyping opt_einsum wandb tensorboard pydantic requests urllib3 click"
    " typer uvicorn starlette fastapi PIL packaging loguru einops aiter triton_kernels sgl_kernel flashinfer"
    " _distutils_hack _virtualenv"
)
# The last four are names of the standard library that people give to files and folders of their own.
_PACKAGES = (sys.stdlib_module_names | set(_MACHINERY.split())) - {"code", "profile", "test", "trace"}

# Libraries that hold model code: a line of theirs is better than none, a line of the user's own is better still.
_MODELS = (
    "transformers diffusers timm torchvision torchaudio torchrec fairseq fairseq2 vllm sglang detectron2 mmcv mmdet"
    " mmengine sentence_transformers peft xformers flash_attn bitsandbytes fairscale megatron nemo torchao trl"
    " segment_anything segment_anything_fast open_clip torch_geometric"
)
_MODEL_PACKAGES = frozenset(_MODELS.split())


def kind_of_frame(name: str) -> int:
    """MODULE, the user's OWN code, a MODEL_LIBRARY, or PLUMBING (torch, standard library, builtins)."""
    if name.startswith(MODULE_PREFIX):
        return MODULE
    match = _FRAME.match(name)
    if match is None:
        return PLUMBING
    path = match["path"].replace("\\", "/")
    package = re.split("(?:site|dist)-packages/", path)[-1].split("/")[0].removesuffix(".py")
    if package in _MODEL_PACKAGES:
        return MODEL_LIBRARY
    if _LIBRARY_MARKS.search(path) or package in _PACKAGES:
        return PLUMBING
    return OWN


def short_source(name: str) -> str:
    """'model.py:57' of 'path/model.py(57): forward'; only for names that ``kind_of_frame`` does not call PLUMBING."""
    match = _FRAME.match(name)
    assert match is not None, "a frame without a line has no source"
    return f"{match['path'].replace(chr(92), '/').rpartition('/')[2]}:{match['line']}"


def function_of(name: str) -> str:
    """'forward' of 'path/model.py(57): forward'; the whole name where it is no frame."""
    match = _FRAME.match(name)
    return name if match is None else name[match.end() :]
