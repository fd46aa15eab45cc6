"""The cases of the corpus: small workloads of many kinds, each file with several settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

WORKLOADS = Path(__file__).parent / "workloads"
Value = int | float | str | bool


@dataclass(frozen=True)
class Case:
    """One workload with the parameters that are set; ``needs`` is a package that it imports besides torch."""

    file: str
    kind: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
    needs: str | None = None

    @property
    def name(self) -> str:
        """The file's name with the parameters that are set, which also names the case's recording."""
        return "-".join([self.file, *(f"{key}={value}" for key, value in self.parameters.items())])

    @property
    def path(self) -> Path:
        """The file of the workload."""
        return WORKLOADS / f"{self.file}.py"

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """The parameters as texts of ``--set``."""
        return tuple((key, str(value)) for key, value in self.parameters.items())


# File -> kind, and the settings of each of its cases.
_TABLE: Mapping[str, tuple[str, tuple[Mapping[str, Value], ...]]] = {
    "perceptron": (
        "dense",
        (
            {},
            {"batch_size": 16, "width": 128, "layers": 32, "looped": True},
            {"batch_size": 32, "width": 256, "layers": 12, "looped": True},
            {"batch_size": 128, "width": 256, "layers": 6, "reads_loss": True},
        ),
    ),
    "dense_scorer": (
        "dense",
        ({}, {"batch_size": 8, "width": 1536, "layers": 6}, {"batch_size": 512, "width": 512, "grad": False}),
    ),
    "autoencoder": ("dense", ({}, {"batch_size": 32})),
    "small_cnn": (
        "convolutional",
        ({}, {"batch_size": 2, "side": 24, "blocks": 8}, {"batch_size": 16, "channels": 16}),
    ),
    "residual_cnn": (
        "convolutional",
        ({}, {"batch_size": 1, "channels": 24, "blocks": 12}, {"batch_size": 8, "channels": 32}),
    ),
    "depthwise_cnn": (
        "convolutional",
        ({}, {"batch_size": 1, "blocks": 16, "train": False}, {"batch_size": 16, "channels": 32, "train": False}),
    ),
    "volume_segmenter": ("convolutional", ({}, {"channels": 8, "blocks": 3})),
    "adversarial_pair": ("convolutional", ({}, {"batch_size": 4, "looped": False})),
    "denoising_unet": (
        "diffusion-like",
        (
            {},
            {"train": False, "channels": 48},
            {"batch_size": 4, "side": 32, "train": False},
            {"channels": 16, "batch_size": 4},
        ),
    ),
    "lstm_language": ("recurrent", ({}, {"zeroes": True, "batch_size": 2, "length": 48}, {"layers": 2, "length": 12})),
    "gru_by_hand": ("recurrent", ({}, {"length": 80, "train": False}, {"batch_size": 128, "length": 16})),
    "written_attention": (
        "attention",
        (
            {},
            {"train": False, "length": 256},
            {"batch_size": 4, "length": 48},
            {"train": False, "batch_size": 1, "layers": 6},
        ),
    ),
    "text_encoder": ("attention", ({}, {"batch_size": 1, "length": 24, "layers": 6}, {"batch_size": 8, "grad": False})),
    "causal_language": ("attention", ({}, {"batch_size": 1, "length": 32, "fused": True}, {"width": 64, "layers": 3})),
    "cached_decoding": ("attention", ({}, {"batch_size": 4, "prompt": 128})),
    "expert_mixture": ("attention", ({}, {"tokens": 128})),
    "image_mixer": ("attention", ({}, {"batch_size": 2, "blocks": 12, "train": False})),
    "click_model": (
        "recommender",
        ({"batch_size": 512}, {"sparse": True, "batch_size": 1024}, {"batch_size": 64, "tables": 16}),
    ),
    "two_towers": (
        "recommender",
        ({}, {"zeroes": False, "looped": True, "rows": 5000}, {"rows": 2000, "batch_size": 768}),
    ),
    "graph_convolution": ("graph", ({}, {"train": False}, {"nodes": 400, "degree": 16})),
    "graph_attention": ("graph", ({}, {"nodes": 1500, "degree": 4})),
    "table_rows": ("tabular", ({}, {"batch_size": 64, "columns": 200})),
    "table_network": ("tabular", ({}, {"batch_size": 1024}, {"train": False, "blocks": 24})),
    "speech_blocks": (
        "speech-like",
        ({}, {"train": False, "blocks": 4}, {"train": False, "batch_size": 8, "frames": 50}),
    ),
    "sound_spectra": ("speech-like", ({"batch_size": 16}, {"channels": 192, "batch_size": 8})),
    "k_means": ("classical", ({"points": 60_000}, {"expanded": True, "points": 8000})),
    "truncated_svd": ("classical", ({"rows": 3000}, {"rows": 800, "columns": 600, "rank": 32})),
    "logistic_by_hand": (
        "classical",
        ({"batch_size": 32_768}, {"batch_size": 16_384, "features": 1024, "tests": False}),
    ),
    "kernel_regression": ("classical", ({"points": 900}, {"points": 700, "targets": 64})),
    "heat_stencil": ("classical", ({"side": 512}, {"side": 400, "double": True})),
    "image_folder": ("convolutional", ({}, {"batch_size": 8, "side": 48})),
    "policy_gradient": ("dense", ({}, {"episode": 20, "width": 256})),
    "configured_model": (
        "transformers",
        (
            {"kind": "bert"},
            {"kind": "gpt2", "train": False, "batch_size": 8},
            {"kind": "llama"},
            {"kind": "vit", "train": False, "batch_size": 8},
            {"kind": "llama", "train": False, "batch_size": 1, "length": 192},
        ),
    ),
    "mixture_density": ("tabular", ({}, {"batch_size": 64, "parts": 4})),
    "latent_reader": ("attention", ({}, {"batch_size": 1, "length": 128, "layers": 6})),
    "text_windows": ("convolutional", ({}, {"batch_size": 4, "length": 48})),
    "word_tagger": ("recurrent", ({}, {"batch_size": 32, "length": 16})),
    "point_sets": ("dense", ({}, {"train": False, "points": 512})),
    "ray_colours": ("dense", ({}, {"batch_size": 8, "layers": 6})),
    "contrasted_views": ("dense", ({}, {"looped": True, "batch_size": 256})),
    "swarm_search": ("classical", ({}, {"particles": 2000})),
}

# What a workload imports besides torch.
_NEEDS: Mapping[str, str] = {"configured_model": "transformers"}

# The first case of every file stands before the second of any, so that an unfinished run has seen all kinds.
CASES: tuple[Case, ...] = tuple(
    Case(file, kind, settings[number], _NEEDS.get(file))
    for number in range(max(len(settings) for _, settings in _TABLE.values()))
    for file, (kind, settings) in _TABLE.items()
    if number < len(settings)
)
