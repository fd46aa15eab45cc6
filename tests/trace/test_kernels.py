"""Kernel names to families, engines, dtypes and libraries; every row is reachable, real names match their vendors."""

import re

import pytest

from bottleneck.trace.kernels import (
    NAME_LIMIT,
    KernelRule,
    KernelTraits,
    LibraryRule,
    describe_kernel,
    find_library,
    kernel_rules,
    library_rules,
)

# One row per kind of name: as real traces spell it, family, engine, math dtype.
REAL_NAMES = [
    ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "collective", "none", None),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "collective", "none", None),
    ("multimem_all_reduce_kernel", "collective", "none", None),
    ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "collective", "none", None),
    ("void deep_ep::ep::internode::dispatch<false, 8>(int4*, float*)", "collective", "none", None),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::Params)", "auxiliary", "none", None),
    ("batched_transpose_32x32_half", "auxiliary", "none", None),
    ("transpose_CNHW2NCHW_V2_2D_WG_off64", "auxiliary", "none", None),
    ("void epilogue::impl::globalKernel<8, 32, float, float>(int)", "auxiliary", "none", None),
    ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false>(int)", "auxiliary", "none", None),
    ("ampere_sgemm_128x64_nn", "matmul", "vector", "fp32"),
    ("volta_sgemm_128x32_nt", "matmul", "vector", "fp32"),
    ("ampere_fp16_sgemm_fp16_128x64_tn", "matmul", "vector", "fp32"),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_ffma_aligna4_alignc4", "matmul", "vector", "fp32"),
    ("cutlass_80_simt_sgemm_128x32_8x5_nn_align1", "matmul", "vector", "fp32"),
    ("cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_64x32x16_1x1x1_3_tnn_align1", "matmul", "vector", "fp32"),
    ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true>(int)", "matmul", "vector", "fp32"),
    ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", "convolution", "vector", "fp32"),
    ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)", "convolution", "vector", "fp32"),
    ("void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1>(int)", "convolution", "vector", "fp32"),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(int)", "convolution", "vector", "fp32"),
    ("std::enable_if<true, void>::type internal::gemvx::kernel<int, int, __half, float>", "matmul", "vector", "fp32"),
    ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4>(int)", "matmul", "vector", "fp32"),
    ("void dot_kernel<float, 128, 0, cublasDotParams<float> >(int)", "matmul", "vector", "fp32"),
    ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "matmul", "matrix", "bf16"),
    ("nvjet_sm100_tst_8x64_64x16_1x4_h_bz_TNN", "matmul", "matrix", "bf16"),
    ("nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", "matmul", "matrix", "fp8"),
    ("nvjet_sss_tf32_128x256_TNT", "matmul", "matrix", "tf32"),
    ("nvjet_sm90_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "matmul", "matrix", "fp16"),
    ("nvjet_sm100_ootst_128x64_128x6_2x1_v_bz_TNT", "matmul", "matrix", None),  # and not the s of sm100
    ("cutlass3x_sm90_tensorop_s64x128x32gemm_e4m3_e4m3_f32_bf16_bf16_128x128x64", "matmul", "matrix", "fp8"),
    ("cutlass3x_sm100_bstensorop_s128x192x64gemm_block_scaled_ue4m3xe2m1_ue4m3xe2m1_f32", "matmul", "matrix", "fp4"),
    ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 2112u, 7168u>", "matmul", "matrix", "fp8"),
    ("void deep_ep::intranode::combine<__nv_bfloat16, 8>(int4*)", "collective", "none", None),
    ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<2u, 4u>", "attention", "matrix", None),
    ("_fwd_grouped_kernel_stage1", "attention", None, None),
    ("_ZN5aiter20pa_bf16_noquant_gqa8E", "attention", "matrix", None),
    ("_ZN5aiter48fmoe_bf16_pertokenFp8_g1u1_vs_silu_1tg_32x256E", "matmul", None, None),
    ("_ZN7ck_tile6kentryILi256ELi1ENS_10GemmKernelINS_", "matmul", None, None),
    ("void ck::kernel_moe_gemm_2lds<ck::GridwiseMoeGemm<int>>", "matmul", None, None),
    ("void permute_kernel<__nv_bfloat16, 8>", "indexing", "vector", None),
    ("void vllm::moe::moe_align_block_size_kernel<int>", "sort", "vector", None),
    ("per_token_group_quant_8bit_kernel", "elementwise", "vector", None),
    ("_swiglu_forward_kernel", "elementwise", "vector", None),
    ("_triton_rope", "elementwise", "vector", None),
    ("linear_relu_square_kernel", "matmul", None, None),
    ("XXT_kernel", "matmul", None, None),
    ("MIOpenConvUniC.kd", "convolution", "vector", "fp32"),
    ("gfx9_f3x2_fp32_stride1_group", "convolution", "vector", "fp32"),
    ("igemm_fwd_gtcx35_nhwc_bf16_bx0_ex0_bt128x256x32", "convolution", "matrix", "bf16"),
    ("ConvHipImplicitGemmForwardV4R4Xdlops", "convolution", "matrix", None),
    ("void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4, true> >", "convolution", "vector", "fp32"),
    ("_chunk_state_fwd_kernel", "scan", None, None),
    ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "scan", None, None),
    ("chunk_bwd_kernel_dqkwg", "scan", None, None),  # and no attention
    ("fused_recurrent_gated_delta_rule_fwd_kernel", "scan", None, None),
    ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s6_sm100f", "matmul", "matrix", "fp8"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", "matmul", "matrix", "bf16"),
    ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x32_warpgroupsize1x1x1", "matmul", "matrix", "tf32"),
    ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw", "convolution", "matrix", "tf32"),
    ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32", "convolution", "matrix", "tf32"),
    ("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8", "matmul", "matrix", "bf16"),
    ("cutlass_75_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8", "matmul", "matrix", "bf16"),
    ("cutlass_70_wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_tn_align1", "matmul", "matrix", "fp16"),
    ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_relu_f2f_stages_32x5_tn", "matmul", "matrix", "fp16"),
    ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", "matmul", "matrix", "fp16"),
    ("volta_h884gemm_64x128_ldg8_nn", "matmul", "matrix", "fp16"),
    ("turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1", "convolution", "matrix", "fp16"),
    ("cutlass_80_tensorop_s1688gemm_256x128_32x3_nn_align1", "matmul", "matrix", "tf32"),
    ("cutlass_tensorop_s1688wgrad_optimized_tf32_256x128_16x3_nhwc_align4", "convolution", "matrix", "tf32"),
    ("cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64", "matmul", "matrix", "bf16"),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(AttentionKernel<float>::Params)", "attention", "matrix", "tf32"),
    ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(AttentionKernel<bfloat16_t>)", "attention", "matrix", "bf16"),
    ("void pytorch_flash::flash_fwd_kernel<Traits<32, 128, cutlass::bfloat16_t> >", "attention", "matrix", "bf16"),
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausal", "attention", "matrix", "fp8"),
    ("attn_fwd.kd", "attention", "matrix", None),
    ("aiter::fmha_fwd_hd128_bf16_rtz", "attention", "matrix", "bf16"),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT320x224x64_MI16x16x1_SN", "matmul", "matrix", "bf16"),
    ("Cijk_Ailk_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT64x224x64_MI16x16x1_SN", "matmul", "matrix", "bf16"),
    ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x64_MI16x16x16x1_SN_1LDSB0", "matmul", "matrix", "fp16"),
    ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN", "matmul", "matrix", "fp32"),
    ("Cijk_Ailk_Bljk_SB_MT64x64x16_SN_1LDSB0_APM1_TT4_4", "matmul", "vector", "fp32"),
    ("Cijk_B_PostGSU2", "auxiliary", "none", None),
    ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x8_wt64x16x4", "convolution", "matrix", "bf16"),
    ("_ZN2ck16kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_RowMajorES7_ttfttNS0_", "convolution", "matrix", "bf16"),
    ("_ZN2ck37kernel_batched_gemm_xdlops_bwd_weightINS_GridwiseGemmILi64EttftL", "convolution", "matrix", "bf16"),
    ("_gemm_a8w8_kernel", "matmul", None, None),
    ("kernel_unified_attention_2d", "attention", None, None),
    ("fused_moe_kernel", "matmul", None, None),
    ("triton_tem_fused_mm_0", "matmul", None, None),
    ("triton_red_fused_add_mean_mul_pow_rsqrt_0", "triton", "vector", None),
    ("triton__0d1d2d3de", "triton", "vector", None),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>",
        "elementwise",
        "vector",
        None,
    ),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "reduction", "vector", None),
    ("void at::native::(anonymous namespace)::softmax_warp_forward<float>", "softmax", "vector", None),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<f>", "normalisation", "vector", None),
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(int)", "normalisation", "vector", None),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, int>", "copy", "vector", None),
    (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
        "copy",
        "vector",
        None,
    ),
    ("void at::native::index_elementwise_kernel<128, 4, gpu_index_kernel>", "indexing", "vector", None),
    ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", "optimizer", "vector", None),
    ("void cub::DeviceRadixSortOnesweepKernel<cub::Policy800, false, long>", "sort", "vector", None),
    ("void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float>", "random", "vector", None),
    ("event_wait", "other", None, None),
    ("", "other", None, None),
]


@pytest.mark.parametrize(("name", "family", "engine", "math_dtype"), REAL_NAMES)
def test_real_names_mean_what_their_vendors_say(
    name: str, family: str, engine: str | None, math_dtype: str | None
) -> None:
    assert describe_kernel(name) == KernelTraits(family, engine, math_dtype, auxiliary=family == "auxiliary")


@pytest.mark.parametrize("rule", kernel_rules(), ids=lambda rule: rule.pattern[:40])
def test_every_row_is_the_first_to_match_its_own_example(rule: KernelRule) -> None:
    matching = [each for each in kernel_rules() if re.search(each.pattern, rule.example.lower())]
    assert matching[0] is rule


def test_a_shadowed_row_would_be_caught() -> None:
    shadow = KernelRule("sgemm", KernelTraits("matmul", "vector", "fp32"), "ampere_sgemm_128x64_nn")
    matching = [each for each in (*kernel_rules(), shadow) if re.search(each.pattern, shadow.example.lower())]
    assert matching[0] is not shadow


def test_case_does_not_matter() -> None:
    assert describe_kernel("AMPERE_SGEMM_128X64_NN") == describe_kernel("ampere_sgemm_128x64_nn")


def test_what_stands_beyond_the_limit_is_not_read() -> None:
    assert describe_kernel("x" * NAME_LIMIT + "_sgemm_").family == "other"
    assert describe_kernel("x" * (NAME_LIMIT - 20) + "volta_hgemm_").family == "matmul"


@pytest.mark.parametrize("piece", ["xmma_", "fprop_conv_bf16_", "bmm_e2m1_t1x", "cijk_a", "_" * 7, "fmha_fwd ("])
def test_a_pathological_name_is_judged_by_its_beginning_alone(piece: str) -> None:
    endless = piece * 1_000_000
    assert describe_kernel(endless) == describe_kernel(endless[:NAME_LIMIT])


def test_kernels_that_reduce_for_another_carry_no_flops() -> None:
    traits = describe_kernel("void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, 128>")
    assert traits == KernelTraits("attention", "none", None, auxiliary=True)


# As real traces spell them, with the library whose code they are.
REAL_LIBRARIES = [
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)", "ATen"),
    ("void at::native::elementwise_kernel<128, 4, at::native::cudnn_like_functor>(int)", "ATen"),  # and not cuDNN
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*)", "ATen"),
    ("void cub::DeviceScanKernel<at::native::policy>(int)", "CUB"),  # and not ATen, whose types it sorts
    ("nvjet_sm90_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "cuBLASLt"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::Params)", "cuBLASLt"),
    ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "cuBLAS"),
    ("volta_sgemm_128x64_tn", "cuBLAS"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_execute_segment_k_off_kernel__5x_cublas", "cuBLAS"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(int)", "cuBLAS"),
    ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float>", "cuBLAS"),
    ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true>(int)", "cuBLAS"),
    ("volta_scudnn_128x64_relu_medium_nn_v1", "cuDNN"),
    ("turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1", "cuDNN"),  # and not cuBLAS
    ("sm80_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x32x32", "cuDNN"),
    ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x64_16x6_nhwc_align4>", "cuDNN"),
    ("cudnn_generated_fort_native_sdpa_sm100_flash_fprop_f16_knob_1_128x128x64_4x1x1_cga1x1x1_kernel0_0", "cuDNN"),
    ("void precomputed_convolve_sgemm<__nv_bfloat16, 1024, 5, 5, 4, 3, 3, 1, false>(int)", "cuDNN"),
    ("void pytorch_flash::flash_fwd_kernel<Traits<32, 128, cutlass::bfloat16_t> >", "FlashAttention"),
    ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<int>)", "CUTLASS"),
    ("_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm10INS_4gemm6kernel", "CUTLASS"),
    ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<2u, 4u>", "FlashInfer"),
    ("Cijk_Ailk_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT64x224x64_MI16x16x1_SN", "hipBLASLt"),
    ("Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN_1LDSB0_APM1_ABV0", "rocBLAS"),
    ("Cijk_S_GA", "Tensile"),  # rocBLAS and hipBLASLt have it
    ("MIOpenConvUniC.kd", "MIOpen"),
    ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x8_wt64x16x4", "MIOpen"),
    ("_ZN2ck16kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_RowMajorES7_ttfttNS0_", "CK"),
    ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePass", "CK"),
    ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256E", "AITER"),
    ("void rocprim::ROCPRIM_400200_NS::detail::trampoline_kernel<int>", "rocPRIM"),
    ("triton_red_fused_add_mean_mul_pow_rsqrt_0", "Inductor"),
    ("triton__0d1d2d3de", "Inductor"),
    ("_fwd_kernel_aligned_0d1d2d3d45d6de7de8c9de10de", "Triton"),
    ("attn_fwd.kd", "Triton"),
    ("fused__autocast_to__15680171862954066917", "NNC"),
    ("void split_embedding_codegen_forward_unweighted_kernel<float, float>(at::GenericPackedTensorAccessor)", "FBGEMM"),
    ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "RCCL"),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "NCCL/RCCL"),
    ("gloo:all_reduce", "Gloo"),
    ("Memcpy HtoD (Pinned -> Device)", "driver"),
    ("Memset (Device)", "driver"),
    ("aten::mkldnn_convolution", "oneDNN"),
    ("mkldnn::_linear_pointwise", "oneDNN"),
    ("mkl::_mkl_linear", "MKL"),
    ("aten::addmm", "BLAS"),
    ("aten::linalg_cholesky_ex", "LAPACK"),
    ("aten::_fft_c2c", "FFT"),
    ("aten::gelu", "ATen or other"),
    ("aten::_slow_conv2d_forward", "ATen or other"),
    ("aten::add_", "ATen"),
    ("aten::expand", "ATen"),  # and no exp
    ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>", None),  # Apex or DeepSpeed
    ("gemm_kernel", None),
    ("void (anonymous namespace)::store_kvcache<2048l, 4, false, long>", None),
    ("AddmmBackward0", None),
    ("", None),
]


@pytest.mark.parametrize(("name", "library"), REAL_LIBRARIES)
def test_a_name_tells_the_library_whose_code_it_is_or_none(name: str, library: str | None) -> None:
    assert find_library(name) == library


@pytest.mark.parametrize("rule", library_rules(), ids=lambda rule: rule.library)
def test_every_row_of_a_library_is_the_first_to_match_its_own_example(rule: LibraryRule) -> None:
    matching = [each for each in library_rules() if re.search(each.pattern, rule.example.lower())]
    assert matching[0] is rule


@pytest.mark.parametrize(
    "piece", ["cutlass_", "cijk_a_", "_" * 7, "flash_fwd_", "0d1d", "void at::", "sgemm_ (", "\x00"]
)
def test_the_library_of_a_pathological_name_is_judged_by_its_beginning_alone(piece: str) -> None:
    endless = piece * 1_000_000
    assert find_library(endless) == find_library(endless[:NAME_LIMIT])
