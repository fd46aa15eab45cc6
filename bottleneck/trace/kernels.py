"""Maps kernel names to families, engines and math dtypes by one declared table; the first match wins.

No profiler records which units a kernel ran on, so its name is the only evidence: on one A100 the same fp32 product may
run as TF32 on tensor cores or on the plain units, an eight-fold difference in the peak that applies. The rows on matrix
products, convolutions and attention resolve every such kernel of the public traces that they were tuned on; rows for
names that none of those traces holds follow vendors' documents and are marked "published".
"""

import re
from functools import cache

from msgspec import Struct

# A C++ template argument list can be megabytes long; the part that distinguishes kernels is near the front.
NAME_LIMIT = 2000


class KernelTraits(Struct, frozen=True):
    """Traits known from a kernel's name: family, engine ('matrix', 'vector', 'none'; null: unknown), math dtype.

    An ``auxiliary`` kernel moves or rearranges data for another one and carries no FLOPs of its own.
    """

    family: str
    engine: str | None = None
    math_dtype: str | None = None
    auxiliary: bool = False


class KernelRule(Struct, frozen=True):
    """A row: a regular expression over lower-case names, its traits, and an example that it is the first to match."""

    pattern: str
    family: str
    engine: str | None
    math_dtype: str | None
    example: str
    auxiliary: bool = False

    @property
    def traits(self) -> KernelTraits:
        """The traits of the kernels that match."""
        return KernelTraits(self.family, self.engine, self.math_dtype, self.auxiliary)


def _auxiliary(pattern: str, example: str, family: str = "auxiliary") -> KernelRule:
    return KernelRule(pattern, family, "none", None, example, auxiliary=True)


def _vector(family: str, pattern: str, example: str, math_dtype: str | None = None) -> KernelRule:
    return KernelRule(pattern, family, "vector", math_dtype, example)


def _attention(math_dtype: str | None, pattern: str, example: str) -> KernelRule:
    return KernelRule(pattern, "attention", "matrix", math_dtype, example)


def _product(math_dtype: str, pattern: str, example: str, convolution: str = "") -> tuple[KernelRule, ...]:
    """Rows for a name pattern of the matrix units that products share with convolutions; those come first."""
    product = KernelRule(pattern, "matmul", "matrix", math_dtype, example)
    both = rf"^(?=.*(?:fprop|dgrad|wgrad|cudnn|conv)).*(?:{pattern})"
    return (KernelRule(both, "convolution", "matrix", math_dtype, convolution), product) if convolution else (product,)


# Most names of most traces; first, because their beginnings decide and none of the slower rows has to be tried.
_TEMPLATE = (
    r"^(void )?at::native::(\(anonymous namespace\)::)?(vectorized_|unrolled_|vectorized_templated_)?elementwise_kernel"
)

_COMMON = (
    _vector("triton", r"^triton_(?!tem)", "triton_red_fused_add_mean_mul_pow_rsqrt_0"),
    _vector(
        "copy",
        rf"{_TEMPLATE}.*(direct_copy|bfloat16_copy|float\w*_copy)_kernel",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda",
    ),
    _vector(
        "elementwise",
        _TEMPLATE,
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3> >",
    ),
)

# Communication names need not contain nccl: custom all-reduce and expert-parallel dispatch are collectives too.
_COLLECTIVE = KernelRule(
    r"nccl(dev)?kernel|rccl|multimem|nvshmem|cross_device_reduce|\bep::(internode|intranode)",
    "collective",
    "none",
    None,
    "ncclDevKernel_AllGather_RING_LL",
)

_HELPERS = (
    _auxiliary(r"split_?k_?reduce|reducesplitk|postgsu", "void cublasLt::splitKreduce_kernel<32, 16, int, float>"),
    _auxiliary(r"nchwtonhwc|nhwctonchw|nhwctofolded|foldednhwcto|nhwcaddpadding", "void cudnn::ops::nchwToNhwcKernel"),
    _auxiliary(
        r"batched_transpose_|transpose_(cnhw2nchw|nchw2cnhw)|transpose_readwrite", "batched_transpose_32x32_half"
    ),
    _auxiliary(r"subtensorop|cudnn::\w+::converttensor_|scalepackedtensor", "SubTensorOpWithScalar1d"),
    _auxiliary(
        r"compute\w*offsetskernel|kern_precompute_indices|prepare_grouped_gemm",
        "cask_cudnn::computeOffsetsKernel<false>",
    ),
    _auxiliary(r"im2col|im2d2col|im3d2col|col2im", "void cudnn::cnn::im2col4d_kernel<float, long>"),
    _auxiliary(r"fft\dd_[rc]2[rc]|flip_filter|generatewinogradtiles", "void fft2d_r2c_32x32<float, false, 0u, false>"),
    _auxiliary(r"epilogue::impl::globalkernel|reduce_wgrad_nchw", "void epilogue::impl::globalKernel<8, 32, float>"),
    _auxiliary(r"paged_attention\w*_reduce_", "void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16>", "attention"),
)

# Products and convolutions on the plain units, whatever the device has beside them.
_PLAIN_UNITS = (
    _vector(
        "convolution",
        r"scudnn|(dgrad|wgrad|conv2d)(\dd)?_?(engine|grouped_direct|alg)|winograd|depthwise|naive_conv"
        r"|miopen(gcn|sp3)asm|convolve_(\w+_)?s?gemm|convolve_common_engine|pointwise_mult_and_sum_complex"
        r"|(fprop|dgrad|wgrad).*_(ffma|simt)_",
        "cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1",
        "fp32",
    ),
    _vector("matmul", r"_dffma_|simt_dgemm|(maxwell|volta|turing|ampere)_[dz]gemm", "volta_dgemm_64x64_nn", "fp64"),
    _vector(
        "matmul",
        r"_ffma_|_simt_|(maxwell|volta|turing|ampere)_((fp|bf)16_)?sgemm_(?!.*tf32)|_g?cgemm|sgemm_largek"
        r"|magma_sgemm|gemmsn_",
        "ampere_sgemm_128x64_nn",
        "fp32",
    ),
    _vector("matmul", r"(volta|turing|ampere)_hgemm", "volta_hgemm_128x64_nt", "fp16"),
    _vector("matmul", r"gemv.*\bdouble\b", "void gemv2T_kernel_val<int, int, double>", "fp64"),
    _vector(
        "matmul",
        r"gemv|gemmk1_|\bdot_kernel|reduce_1block|rocblas_(gemv|dot)",
        "internal::gemvx::kernel<int, int, __half>",
        "fp32",
    ),
)

# Fused attention. In fp32 it runs as TF32 (in three passes for accuracy); sage attention quantises to 8 bits.
_ATTENTION = (
    _attention("fp8", r"sage_fwd|fmha\w*_qkve4m3", "fmhaSm100aKernel_QkvE4m3OBfloat16H64"),
    _attention("tf32", r"fmha_cutlass[fb]_f32", "fmha_cutlassF_f32_aligned_64x64_rf_sm80"),
    _attention("fp16", r"fmha_cutlass[fb]_f16", "fmha_cutlassF_f16_aligned_64x64_rf_sm80"),
    _attention(
        "bf16",
        r"fmha_cutlass[fb]_bf16|(flash|fmha)_(fwd|bwd).*(bfloat16|bf16)|mfma.*__hip_bfloat16",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, cutlass::bfloat16_t> >",
    ),
    _attention(
        "fp16",
        r"(flash|fmha)_(fwd|bwd).*(half_t|fp16|_half\b)",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::half_t> >",
    ),
    _attention(
        None,
        r"fort_native_sdpa|fmhasm\d|flash_(fwd|bwd)|\battn_fwd|bwd_kernel_(dk_dv|dq)|ck_tile.*fmha|aiter::fmha"
        r"|paged_attention|flash_attn|flashattn",
        "attn_fwd.kd",
    ),
    KernelRule(
        r"kernel_unified_attention|^triton_tem.*attention|^_(attn_)?fwd_kernel|^_attn_(fwd|bwd)",
        "attention",
        None,
        None,
        "kernel_unified_attention_2d",
    ),
)

# The operand letter of nvjet names: q fp8, t bf16, h fp16, s fp32, which tensor cores take as TF32. In cutlass names
# the accumulator comes first ('s16816' is fp32, 'h16816' fp16), and no dtype before 's1688' means TF32.
_NVIDIA_MATRIX_UNITS = (
    *_product("fp8", r"nvjet_(sm\d+_)?q", "nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT"),  # published
    *_product("bf16", r"nvjet_(sm\d+_)?t", "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT"),
    *_product("fp16", r"nvjet_(sm\d+_)?h", "nvjet_hsh_64x64_64x16_2x1_v_bz_TNT"),
    *_product("tf32", r"nvjet_(sm\d+_)?s", "nvjet_sss_tf32_128x256_TNT"),  # published
    # fp4 weights beside fp8 activations run at the fp8 rate.
    *_product("fp8", r"bmm_.*e4m3.*t\d+x\d+x\d+", "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_sm100f"),
    *_product("fp4", r"bmm_.*e2m1.*t\d+x\d+x\d+", "bmm_Bfloat16_E2m1E2m1_Fp32_t128x16x256u2_s3_sm100f"),
    *_product("int8", r"xmma.*(_i8|int8)", "sm80_xmma_gemm_i8i32_i8i32_i32_tn_n", "sm80_xmma_fprop_implicit_gemm_i8i8"),
    *_product("fp8", r"xmma.*(e4m3|e5m2)", "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128"),
    *_product(
        "tf32",
        r"xmma.*tf32",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x32_warpgroupsize1x1x1",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16",
    ),
    *_product(
        "bf16",
        r"xmma.*bf16bf16",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
        "sm80_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x32x32",
    ),
    *_product(
        "fp16",
        r"xmma.*f16f16",
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x64x64",
        "sm80_xmma_fprop_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x32x32",
    ),
    *_product("fp64", r"xmma.*f64f64", "sm80_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize64x64x16"),
    *_product(
        "bf16",
        r"bf16_s?(1688|16816|161616)",
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8",
        "cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8",
    ),
    *_product(
        "fp16",
        r"(_|^)(h(884|1688|16816|161616)|fp?16_s?(884|1688|16816|161616))",
        "ampere_fp16_s16816gemm_fp16_128x128_ldg8_relu_f2f_stages_32x5_tn",
        "turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_medium_nhwc_tn_v1",
    ),
    *_product("int8", r"_i(8816|16832)", "cutlass_80_tensorop_i16832gemm_s8_128x128_64x4_tn_align16"),
    *_product("fp64", r"_d(884|16816)", "cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1"),
    *_product(
        "tf32",
        r"s1688(gemm|fprop|dgrad|wgrad)|tf32|tfloat32",
        "cutlass_80_tensorop_s1688gemm_256x128_32x3_nn_align1",
        "cutlass_tensorop_s1688dgrad_optimized_tf32_128x128_16x4_nhwc_unity_stride_align4",
    ),
    *_product(
        "bf16", r"(tensorop|umma|gmma|_mma_).*(bf16|bfloat16)", "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16"
    ),
    *_product(
        "fp8", r"(tensorop|umma|gmma|_mma_).*(e4m3|e5m2)", "cutlass3x_sm90_tensorop_s64x128x32gemm_e4m3_e4m3_f32"
    ),
    *_product(
        "fp16", r"(tensorop|umma|gmma|_mma_).*(f16|half_t)", "cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32"
    ),
    KernelRule(
        r"gmma|wgmma|tcgen05|umma|sm90_\d+x|sm100_mma|cutlass3x_sm|warpspecialized|warpgroupsize|tensorop",
        "matmul",
        "matrix",
        None,
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<MainloopSm90TmaGmmaWarpSpecialized> >",
    ),
)

# Tensile names spell the operand types after the index letters: B bf16, H fp16, F8 fp8, S fp32, D fp64; 'MI' means that
# the matrix instructions are used. Composable Kernel mangles bf16 as DF16b or as t (a 16-bit integer), fp16 as DF16_.
_TENSILE = r"^cijk_a[a-z]{3,4}_b[a-z]{3,4}_"

_AMD_MATRIX_UNITS = (
    *_product(
        "bf16", rf"{_TENSILE}b_?b?s?_.*_mi\d", "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT320x224x64_MI16x16x1"
    ),
    *_product("fp16", rf"{_TENSILE}h_?h?s?_.*_mi\d", "Cijk_Ailk_Bljk_HHS_BH_MT128x128x64_MI16x16x16x1_SN_1LDSB0"),
    *_product(
        "fp8", rf"{_TENSILE}[fb]8.*_mi\d", "Cijk_Alik_Bljk_F8BS_BH_Bias_SHB_SAV_UserArgs_MT128x128x128_MI16x16x1"
    ),
    *_product("int8", rf"{_TENSILE}(4x)?i8.*_mi\d", "Cijk_Alik_Bljk_I8II_BH_MT128x128x64_MI16x16x1_SN"),
    *_product("fp32", rf"{_TENSILE}s_?b?_.*_mi\d", "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN"),
    *_product("fp64", rf"{_TENSILE}d_?b?_.*_mi\d", "Cijk_Ailk_Bljk_DB_MT64x64x16_MI16x16x4x1_SN_1LDSB0"),
    KernelRule(r"^cijk_.*_mi\d", "matmul", "matrix", None, "Cijk_Ailk_Bljk_CB_MT64x64x16_MI16x16x4x1_SN"),
    KernelRule(rf"{_TENSILE}d_?b?_", "matmul", "vector", "fp64", "Cijk_Ailk_Bljk_DB_MT64x64x16_SN_1LDSB0_TT4_4"),
    _vector("matmul", r"^cijk_", "Cijk_Ailk_Bljk_SB_MT64x64x16_SN_1LDSB0_APM1_TT4_4", "fp32"),
    KernelRule(r"igemm_\w+_gtcx\d?_\w*bf16", "convolution", "matrix", "bf16", "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1"),
    KernelRule(r"igemm_\w+_gtcx\d?_\w*fp16", "convolution", "matrix", "fp16", "igemm_bwd_gtcx3_nhwc_fp16_bx0_ex1"),
    KernelRule(r"igemm_\w+_gtcx\d?_\w*fp32", "convolution", "matrix", "fp32", "igemm_wrw_gtcx2_nhwc_fp32_bx0_ex1"),
    _vector("convolution", r"igemm_\w+_gtc_", "igemm_fwd_gtc_nchw_fp32_bx0_ex1", "fp32"),
    KernelRule(
        r"conv_fwd\w*_xdl.*(df16b|ttft)|bwd_(weight|data).*xdl.*(df16b|ttft)|xdl\w*_bwd_weight.*(df16b|ttft)",
        "convolution",
        "matrix",
        "bf16",
        "_ZN2ck16tensor_operation6device12kernel_grouped_conv_fwd_multiple_abd_xdl_cshuffleIDF16bDF16bDF16bf",
    ),
    KernelRule(
        r"conv(_fwd|olution)\w*_(xdl|wmma)|bwd_(weight|data).*_(xdl|wmma)|(xdl|wmma)\w*_bwd_weight",
        "convolution",
        "matrix",
        None,
        "_ZN2ck39kernel_grouped_conv_fwd_xdl_cshuffle_v3IDF16_",
    ),
    KernelRule(r"xdl(ops)?|_wmma_|mfma", "matmul", "matrix", None, "_ZN2ck13kernel_gemm_xdlops_v2r3IDF16_DF16_"),
    _vector("convolution", r"ck.*conv\w*_dl_", "_ZN2ck32kernel_grouped_conv_fwd_dl_multiple_d", "fp32"),
)

# Written by hand or in Triton: they use the matrix units or not, depending on the dtype of their arguments.
_EITHER_UNITS = (
    KernelRule(r"^triton_tem.*conv", "convolution", None, None, "triton_tem_fused_convolution_0"),
    KernelRule(
        r"fused_moe_kernel|grouped_gemm|^_?matmul_(kernel|ogs)|_gemm_a\dw\d|marlin|^_*gemm_|_gemm_f(16|32)|bf16_gemm"
        r"|(gemm|matmul)_kernel|^triton_tem",
        "matmul",
        None,
        None,
        "_gemm_a8w8_kernel",
    ),
)

# The rest is bound by memory; a finer family only sorts the report. Optimisers come first: their names hold the
# functors of the pointwise kernels. The most specific pointwise kernels come before the templates that carry them.
_MEMORY = (
    _vector("optimizer", r"multi_tensor_apply|fused_?adam|adagrad|fusedsgd|rowwise_adam", "multi_tensor_apply_kernel"),
    _vector("softmax", r"softmax", "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16>"),
    _vector(
        "normalisation",
        r"layer_?norm|batch_?norm|group_?norm|rms_?norm|\bbn_(fw|bw)_|_bn_(fw|bw)_|gammabeta|rowwisemoments",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
    ),
    _vector("random", r"dropout|distribution_|philox|random|bernoulli", "void at::native::fused_dropout_kernel_vec<f>"),
    _vector("loss", r"nll_?loss|classnll|cross_?entropy|ctc_loss|mse_", "nll_loss_forward_reduce_cuda_kernel_2d"),
    _vector("pooling", r"max_?pool|avg_?pool|average_?pool", "void at::native::max_pool_forward_nchw<float, float>"),
    _vector("interpolation", r"upsample|grid_sampler|roi_align", "upsample_bilinear2d_out_frame<float>"),
    _vector("sort", r"sort|top_?k|\bnms_", "void cub::DeviceRadixSortOnesweepKernel<cub::Policy800>"),
    _vector(
        "scan", r"scan_|devicescan|deviceselect|devicecompact|unique|wrapped_scan|cumsum", "cub::DeviceScanKernel<>"
    ),
    _vector("elementwise", r"rotary|transform_bias|act_and_mul|dequantize|sage_quant", "vllm::rotary_embedding_kernel"),
    _vector(
        "copy",
        r"catarray|_copy_async|reshape_and_cache|store_kvcache|transpose|concat",
        "CatArrayBatchedCopy<float, int>",
    ),
    _vector(
        "indexing",
        r"index|gather|scatter|embedding|embs_kernel|searchsorted|fbgemm_gpu::permute|find_long_segments|triu_tril"
        r"|tril_|write_indices|kv_indices|masked_select|lookup",
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>",
    ),
    _vector(
        "reduction",
        r"reduce_kernel|devicereduce|reduction|histogram|_sum_|reduce_segments|norm_kernel|reducebykey",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >",
    ),
    _vector(
        "elementwise",
        r"elementwise|vectorized_|unrolled_|fillfunctor|^(add|mul|sub|div)_kernel|fused_|arange|pointwise|clamp|spin_",
        "fused__autocast_to__15680171862954066917",
    ),
)

KERNEL_RULES = (
    *_COMMON,
    _COLLECTIVE,
    *_HELPERS,
    *_PLAIN_UNITS,
    *_ATTENTION,
    *_NVIDIA_MATRIX_UNITS,
    *_AMD_MATRIX_UNITS,
    *_EITHER_UNITS,
    *_MEMORY,
)

_OTHER = KernelTraits("other")


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], KernelTraits], ...]:
    """The patterns of the rows, compiled at the first name: most reports of a CPU need none of them."""
    return tuple((re.compile(rule.pattern), rule.traits) for rule in KERNEL_RULES)


def describe_kernel(name: str) -> KernelTraits:
    """The traits of the first row that matches a kernel's name; family 'other' and no more when none matches."""
    text = name[:NAME_LIMIT].lower()
    return next((traits for pattern, traits in _compiled() if pattern.search(text)), _OTHER)
