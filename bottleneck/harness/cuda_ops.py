"""Makes torch choose ops for CPU tensors as for those of a CUDA device.

A build of torch without CUDA has no fake tensors of that kind: autograd asks for the streams of a device that is not
there. A step under fake tensors therefore runs on fake CPU tensors, and what torch decides by the kind of device is
decided here as for CUDA: attention, dropout, recurrent layers, autocast, optimizers, and what `torch.cuda` answers.
Everything holds for the whole process, which runs the user's program for nothing else.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from bottleneck.harness import torch_private


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Of ATen/autocast_mode.h: the ops that autocast of CUDA computes in fp32, and that of the CPU does not.
_FP32 = _words("""acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm
native_layer_norm group_norm cosine_similarity poisson_nll_loss hinge_embedding_loss kl_div l1_loss smooth_l1_loss
huber_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
binary_cross_entropy_with_logits dist pdist renorm logsumexp upsample_nearest1d upsample_nearest2d upsample_nearest3d
upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d nll_loss2d""")
# These read their argument as it is, and add up or divide in fp32; by overload, which take ``dtype``.
_FP32_RESULT = _words("softmax.int log_softmax.int cumprod cumsum linalg_vector_norm sum sum.dim_IntList")

_RNN_MODES: Mapping[str, int] = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_LSTM = 2
_LARGEST_HEAD = 256
_MASK_ALIGNMENT = 8
# Attribute of tensors that lie in the memory of the host: those that data loaders give out.
ON_HOST = "_bottleneck_is_on_host"


class CudaChoices:
    """The replaced ops, by name, and what the program was seen to ask for.

    ``uses_compile`` turns true once it calls torch.compile, which gives back what it got; ``autocast`` holds the types
    of the autocast regions that it entered, ``copied_bytes`` counts what it moves from the host to the device, of which
    ``take_to_device`` is told: it gives true for what was made in the step.
    Everything holds as long as this object lives.
    """

    def __init__(self, torch: Any, fake_tensor: type) -> None:
        self.uses_compile = False
        self.autocast: set[str] = set()
        self.copied_bytes = 0
        self.take_to_device: Callable[[Any], bool] = lambda _: False
        self._torch, self._aten = torch, torch.ops.aten
        self.replaced: dict[Any, Callable[..., Any]] = {
            self._aten.scaled_dot_product_attention.default: self._attention,
            self._aten.dropout.default: self._dropout,
            self._aten.to.dtype_layout: self._to,
            self._aten.to.device: self._to_device,
            **{getattr(self._aten, name).input: self._recurrent(mode) for name, mode in _RNN_MODES.items()},
        }
        self._libraries = [self._replace_ops(), self._describe_ops(), *self._autocast()]
        self._choose_foreach(fake_tensor)
        self._stand_in_for_device()
        torch.backends.mha.set_fastpath_enabled(False)

    def _replace_ops(self) -> Any:
        library = self._torch.library.Library("aten", "IMPL", "AutogradCPU")
        for op, function in self.replaced.items():
            library.impl(op, function)
        return library

    def _attention(  # noqa: PLR0913 - the signature of the op
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """scaled_dot_product_attention by the first backend that takes the arguments: flash, efficient, math."""
        torch, aten, enabled = self._torch, self._aten, self._torch.backends.cuda
        tensors = (query, key, value)
        is_half = all(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in tensors)
        is_plain = all(tensor.dim() == 4 and tensor.stride(-1) == 1 and tensor.numel() for tensor in tensors)
        head = query.size(-1)
        is_even = head == key.size(-1) == value.size(-1)
        is_flash = is_half and is_plain and is_even and head <= _LARGEST_HEAD and attn_mask is None
        if enabled.flash_sdp_enabled() and is_flash:
            return self._flash(query, key, value, dropout_p, is_causal, head**-0.5 if scale is None else scale)
        alignment = 16 // query.element_size()
        is_aligned = head % alignment == 0 and value.size(-1) % alignment == 0
        is_float = is_half or all(tensor.dtype == torch.float32 for tensor in tensors)
        if enabled.mem_efficient_sdp_enabled() and is_float and is_plain and is_aligned and not enable_gqa:
            needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
            mask = self._as_bias(attn_mask, query)
            if mask is not None:
                mask = mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, mask, needs_grad, dropout_p, is_causal, scale=scale
            )[0]
        return aten._scaled_dot_product_attention_math(
            query, key, value, self._as_bias(attn_mask, query), dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]

    def _flash(self, query: Any, key: Any, value: Any, *options: Any) -> Any:
        head = query.size(-1)
        if missing := -head % _MASK_ALIGNMENT:
            query, key, value = (self._aten.constant_pad_nd(tensor, [0, missing]) for tensor in (query, key, value))
        dropout_p, is_causal, scale = options
        result = self._aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
        return result[..., :head] if missing else result

    def _as_bias(self, mask: Any, query: Any) -> Any:
        """Returns the mask as numbers to add.

        The kernels take them instead of a boolean one.
        """
        if mask is None or mask.dtype is not self._torch.bool:
            return mask
        bias = self._aten.zeros_like(mask, dtype=query.dtype)
        return bias.masked_fill_(mask.logical_not(), float("-inf"))

    def _to(self, values: Any, **options: Any) -> Any:
        """Returns a copy of another type or format where one is asked for.

        All tensors are on the one device already.
        """
        self._count_copy(values, options.get("device"))
        dtype, form = options.get("dtype"), options.get("memory_format")
        is_other = form not in (None, self._torch.preserve_format) and not values.is_contiguous(memory_format=form)
        if options.get("copy") or is_other or dtype not in (None, values.dtype):
            return self._aten._to_copy(values, dtype=dtype, memory_format=form)
        return values

    def _to_device(self, values: Any, device: Any, dtype: Any, *rest: Any, **options: Any) -> Any:
        self._count_copy(values, device)
        given = dict(zip(("non_blocking", "copy", "memory_format"), rest, strict=False))
        return self._to(values, dtype=dtype, **given, **options)

    def _count_copy(self, values: Any, device: Any) -> None:
        """Counts a tensor that moves from the host to the device."""
        if device is None or self._torch.device(device).type != "cuda":
            return
        is_of_loader = getattr(values, ON_HOST, False)
        if self.take_to_device(values) or is_of_loader:
            self.copied_bytes += values.numel() * values.element_size()
        if is_of_loader:
            setattr(values, ON_HOST, False)

    def _dropout(self, values: Any, p: float, train: bool) -> Any:
        """One kernel makes the mask and applies it."""
        return self._aten.native_dropout(values, p, train)[0] if train and 0 < p < 1 else values

    def _recurrent(self, mode: int) -> Callable[..., Any]:
        """Makes one call of cuDNN for all time steps and layers.

        Arguments are those of `torch.lstm` and `torch.gru`.
        """

        def run(values: Any, state: Any, weights: Any, *options: Any) -> Any:
            has_biases, layers, dropout, train, bidirectional, batch_first = options
            hidden, cell = state if mode == _LSTM else (state, None)
            per_layer = len(weights) // (layers * (2 if bidirectional else 1))
            projection = hidden.size(2) if cell is not None and cell.size(2) != hidden.size(2) else 0
            output, last, last_cell, *_ = self._aten._cudnn_rnn(
                values,
                weights,
                per_layer if has_biases else 2,
                # cuDNN keeps the weights of all layers in one place, which are the parameters themselves.
                weights[0].new_empty(0),
                hidden,
                cell,
                mode,
                (hidden if cell is None else cell).size(2),
                projection,
                layers,
                batch_first,
                dropout,
                train,
                bidirectional,
                [],
                None,
            )
            return (output, last, last_cell) if mode == _LSTM else (output, last)

        return run

    def _describe_ops(self) -> Any:
        """Shapes of the results of ops for which torch has none."""
        library = self._torch.library.Library("aten", "IMPL", "Meta")
        library.impl("_cudnn_rnn_backward", _recurrent_gradients)
        return library

    def _autocast(self) -> list[Any]:
        """Applies the fp32 list of CUDA's autocast to CPU tensors.

        Regions of CUDA become regions of the CPU.
        """
        torch = self._torch
        library = torch.library.Library("aten", "IMPL", "AutocastCPU")
        for name in _FP32:
            packet = getattr(self._aten, name)
            for op in (getattr(packet, overload) for overload in packet.overloads()):
                if any("Tensor" in str(argument.type) for argument in torch_private.schema_of(op).arguments):
                    self._cast(library, op, self._to_fp32)
        for name in _FP32_RESULT:
            packet, _, overload = name.partition(".")
            self._cast(library, getattr(getattr(self._aten, packet), overload or "default"), self._with_fp32_result)
        kind = torch.amp.autocast_mode.autocast
        start, enter = kind.__init__, kind.__enter__

        def start_on_cpu(this: Any, device_type: str, dtype: Any = None, *rest: Any, **options: Any) -> None:
            if device_type == "cuda":
                dtype = torch.get_autocast_dtype("cuda") if dtype is None else dtype
            start(this, "cpu", dtype, *rest, **options)

        def enter_region(this: Any) -> Any:
            if torch_private.is_enabled(this):
                self.autocast.add(str(this.fast_dtype).removeprefix("torch."))
            return enter(this)

        kind.__init__, kind.__enter__ = start_on_cpu, enter_region
        return [library]

    def _cast(self, library: Any, op: Any, how: Callable[..., Any]) -> None:
        takes_out = any(argument.is_out for argument in torch_private.schema_of(op).arguments)
        if takes_out or torch_private.has_kernel(op, "AutocastCPU"):
            return

        def kernel(*arguments: Any, **options: Any) -> Any:
            with torch_private.without_key("AutocastCPU"):
                return how(op, arguments, options)

        library.impl(op, kernel)

    def _to_fp32(self, op: Any, arguments: Any, options: Any) -> Any:
        return op(*map(self._widened, arguments), **{name: self._widened(value) for name, value in options.items()})

    def _with_fp32_result(self, op: Any, arguments: Any, options: Any) -> Any:
        if self._is_half(arguments[0]) and options.get("dtype") is None:
            given = {
                argument.name: value
                for argument, value in zip(torch_private.schema_of(op).arguments, arguments, strict=False)
            }
            if given.get("dtype") is None:
                return op(**{**given, **options, "dtype": self._torch.float32})
        return op(*arguments, **options)

    def _is_half(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor) and value.dtype in (self._torch.float16, self._torch.bfloat16)

    def _widened(self, value: Any) -> Any:
        return value.to(self._torch.float32) if self._is_half(value) else value

    def _choose_foreach(self, fake_tensor: type) -> None:
        """Lets optimizers and gradient clipping take all parameters in one call.

        They do so by default for CUDA tensors.
        """
        torch_private.use_foreach_for(fake_tensor)

    def _stand_in_for_device(self) -> None:
        """Answers for `torch.cuda` on a machine with one GPU.

        Programs choose their device by these answers.
        """
        torch = self._torch
        answers: Mapping[str, Any] = {
            "is_available": True,
            "is_bf16_supported": True,
            "is_initialized": True,
            "device_count": 1,
            "current_device": 0,
            "get_device_capability": (8, 0),
            "get_device_name": "fake CUDA device",
            "synchronize": None,
            "empty_cache": None,
            "set_device": None,
            "reset_peak_memory_stats": None,
            "memory_allocated": 0,
            "max_memory_allocated": 0,
            "memory_reserved": 0,
            "max_memory_reserved": 0,
            "get_rng_state": torch.empty(0, dtype=torch.uint8),
            "set_rng_state": None,
            "manual_seed": None,
            "manual_seed_all": None,
        }
        for name, answer in answers.items():
            setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
        # `model.to(...)` swaps fake tensors, which refuses those that torch itself holds weak references to.
        torch.utils.weakref = SimpleNamespace(getweakrefs=lambda _: [])
        torch.Tensor.pin_memory = lambda this, *_, **__: this
        self._their_compile, torch.compile = torch.compile, self._compile

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Torch.compile is torch's own within: for what captures a graph and changes it."""
        self._torch.compile = self._their_compile
        try:
            yield
        finally:
            self._torch.compile = self._compile

    def _compile(self, model: Any = None, **_: Any) -> Any:
        """Returns the model itself.

        The calls are those of the eager step, and the prices know what compiling changes.
        """
        self.uses_compile = True
        return model if model is not None else lambda function: function


def _recurrent_gradients(*arguments: Any) -> Any:
    """Returns the sizes of the gradients of `_cudnn_rnn`.

    They are those of its input, its states and its weights.
    """
    values, weights, _, _, hidden, cell = arguments[:6]
    return (
        values.new_empty(values.shape),
        hidden.new_empty(hidden.shape),
        cell.new_empty(cell.shape) if cell is not None else values.new_empty(0),
        [weight.new_empty(weight.shape) for weight in weights],
    )
