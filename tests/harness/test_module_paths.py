"""Attribute paths of the modules that a window saw: of a real model, of several, and where they are in doubt."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from bottleneck.harness.module_paths import Held, ModelPath, attribute_paths, find_modules
from bottleneck.harness.window import Detail, ProfilerWindow
from bottleneck.schema.op_names import MODULE_PATHS


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.key(values) + self.query(values)  # the other way round than they were made


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layer:
            values = layer(values)
        return values


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.encoder(values)


def _recorded(step: Callable[[], Any], path: Path, detail: Detail | None = None) -> Any:
    window = ProfilerWindow(torch, detail or Detail())
    window.start()  # not by the guard, which would watch torch for the rest of these tests
    step()
    window.stop()
    window.export(path)
    return json.loads(gzip.decompress(path.read_bytes())).get(MODULE_PATHS)


def test_modules_of_a_model_go_by_their_attributes_whatever_the_order_of_their_calls(tmp_path: Path) -> None:
    model, values = Model(), torch.ones(2, 4)
    assert _recorded(lambda: model(values), tmp_path / "trace.json.gz") == {
        "Model_0": "Model",
        "Encoder_0": "encoder",
        "Attention_0": "encoder.layer.0",
        "Linear_0": "encoder.layer.0.key",
        "Linear_1": "encoder.layer.0.query",
        "Attention_1": "encoder.layer.1",
        "Linear_2": "encoder.layer.1.key",
        "Linear_3": "encoder.layer.1.query",
    }


def test_path_of_several_models_begins_with_the_class_of_each(tmp_path: Path) -> None:
    model, critic, values = Model(), nn.Sequential(nn.Linear(4, 1)), torch.ones(2, 4)
    named = _recorded(lambda: critic(model(values)), tmp_path / "trace.json.gz")
    assert (named["Linear_0"], named["Linear_4"]) == ("Model.encoder.layer.0.key", "Sequential.0")


def test_models_of_one_class_keep_the_names_of_the_trace(tmp_path: Path) -> None:
    models, values = (Model(), Model()), torch.ones(2, 4)
    assert _recorded(lambda: [model(values) for model in models], tmp_path / "trace.json.gz") == {}


def test_two_classes_of_one_name_are_in_doubt(tmp_path: Path) -> None:
    model, values = Model(), torch.ones(2, 4)
    model.encoder.layer.append(type("Attention", (Attention,), {})())
    named = _recorded(lambda: model(values), tmp_path / "trace.json.gz")
    assert "Attention_0" not in named and named["Attention_1"] == "encoder.layer.1"


def test_window_without_frames_has_no_table(tmp_path: Path) -> None:
    model, values = Model(), torch.ones(2, 4)
    assert _recorded(lambda: model(values), tmp_path / "trace.json.gz", Detail(stacks=False)) is None


def _event(name: str, number: int, kind: int = 1) -> Any:
    module = SimpleNamespace(self_ptr=number, cls_ptr=kind)
    return SimpleNamespace(name=f"nn.Module: {name}", extra_fields=SimpleNamespace(module=module))


def test_module_at_the_address_of_one_that_is_gone_is_another() -> None:
    held = {7: Held(1, (ModelPath(3, "Model", "encoder"),))}
    assert attribute_paths([_event("Encoder_0", 7)], held) == {"Encoder_0": "encoder"}
    assert attribute_paths([_event("Encoder_0", 7, kind=2)], held) == {}


def test_module_of_several_models_is_named_in_the_one_at_work() -> None:
    held = {
        7: Held(1, (ModelPath(3, "Probe", "body"), ModelPath(4, "Model", "encoder"))),
        4: Held(1, (ModelPath(4, "Model", ""),)),
    }
    events = [_event("Model_0", 4), _event("Encoder_0", 7)]
    assert attribute_paths(events, held) == {"Model_0": "Model", "Encoder_0": "encoder"}


def test_class_with_a_dot_in_its_name_takes_the_names_that_it_could_be_taken_for() -> None:
    held = {7: Held(1, (ModelPath(3, "Model", "first"),)), 8: Held(1, (ModelPath(3, "Model", "second"),))}
    assert attribute_paths([_event("odd.Layer_0", 7), _event("Layer_0", 8)], held) == {}


def test_event_whose_name_torch_has_lost_is_passed_over() -> None:
    class Lost:
        @property
        def name(self) -> str:
            return b"\xd0".decode()

    assert attribute_paths([Lost()], {}) == {}


def test_class_that_hides_its_children_costs_no_more_than_the_names() -> None:
    class Odd(nn.Module):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    odd = Odd()
    model = Model()
    assert find_modules(torch)[id(model.encoder)].places[0].path == "encoder"
    assert id(odd) in find_modules(torch)
