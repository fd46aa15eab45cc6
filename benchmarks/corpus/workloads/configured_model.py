"""A small model made from a configuration of `transformers`, with random weights: nothing is downloaded."""

from collections.abc import Callable

import torch
import transformers


def workload(
    kind: str = "bert", batch_size: int = 2, length: int = 32, width: int = 128, train: bool = True
) -> Callable[[], object]:
    sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 4 * width}
    tokens = torch.randint(0, 900, (batch_size, length))
    if kind == "vit":
        config = transformers.ViTConfig(image_size=64, patch_size=8, num_labels=10, **sizes)
        model: torch.nn.Module = transformers.ViTForImageClassification(config)
        inputs = {"pixel_values": torch.randn(batch_size, 3, 64, 64), "labels": torch.randint(0, 10, (batch_size,))}
    elif kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=1000, n_embd=width, n_layer=2, n_head=4, n_positions=256)
        model, inputs = transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}
    elif kind == "llama":
        config = transformers.LlamaConfig(vocab_size=1000, **sizes)
        model, inputs = transformers.LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens}
    else:
        config = transformers.BertConfig(vocab_size=1000, **sizes)
        model, inputs = transformers.BertForMaskedLM(config), {"input_ids": tokens, "labels": tokens}
    if not train:
        model.eval()

        def infer() -> object:
            with torch.no_grad():
                return model(**inputs).logits

        return infer
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> object:
        optimizer.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        return loss

    return step
