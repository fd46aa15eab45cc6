"""Makes a Llama from its configuration, without weights; the cases of this folder run it."""

import torch


def llama(width, layers, heads, inner, *, tied, heads_of_keys=8, **more):
    """A causal model in bf16 as `transformers` has it, with scaled_dot_product_attention."""
    import transformers  # noqa: PLC0415 - the case is left out where it is not installed

    config = transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads_of_keys,
        head_dim=width // heads,
        intermediate_size=inner,
        tie_word_embeddings=tied,
        attn_implementation="sdpa",
        **more,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def llama_1b():
    """Llama 3.2 of 1.2 billion parameters."""
    return llama(2048, 16, 32, 8192, tied=True)


def llama_8b():
    """Llama 3.1 of 8.0 billion parameters."""
    return llama(4096, 32, 32, 14336, tied=False)


def choose_mask(compiled):
    """Has models make the mask that they make for real tensors, op by op or while Dynamo traces them.

    `transformers` leaves the causal mask to attention's own argument unless sequences are packed, for which it looks at
    values, or unless the model is exported: Dynamo before torch 2.14 takes `torch.compiler.is_exporting()` as true
    (transformers/masking_utils.py, `_ignore_causal_mask_sdpa`).
    """
    from transformers import masking_utils  # noqa: PLC0415

    masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    if compiled:
        masking_utils.is_torchdynamo_exporting = lambda: True


def benchmark_step(model, length, work, compiled):
    """A step of `torch-compile-bench.py`: 'forward', 'backward' (both) or 'optimizer' (with AdamW); one sequence.

    It sets the precision of products to 'high' and turns checkpointing on for training.
    """
    choose_mask(compiled)
    torch.set_float32_matmul_precision("high")
    tokens = torch.zeros(1, length, dtype=torch.long)
    if work == "forward":
        model.eval()

        def infer():
            with torch.no_grad():
                model(input_ids=tokens)

        return infer
    model.train()
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if work == "optimizer" else None

    def step():
        model.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens).loss.backward()
        if optimizer is not None:
            optimizer.step()

    return step
