"""Dtypes and item sizes in kernel names: of the data, not of accumulators or index arithmetic."""

import pytest

from bottleneck.schema.kernel_dtypes import kernel_dtype, kernel_item_bytes

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::"


@pytest.mark.parametrize(
    ("name", "math_dtype", "dtype"),
    [
        (
            "void (anonymous namespace)::softmax_warp_forward<c10::Half, float, float, 10, true>(float*)",
            None,
            "c10::Half",
        ),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<__half, float, 512, true, 1>(cudnnTensorStruct)", None, "c10::Half"),
        ("void implicit_convolve_sgemm<float, float, 128, 6, 7>(int, int, int, float const*)", "fp32", "float"),
        ("volta_scudnn_128x64_relu_medium_nn_v1", "fp32", "float"),
        ("volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_medium_nhwc2nchw_tn_v1", "fp16", "c10::Half"),
        ("cutlass_80_tensorop_s1688gemm_256x128_32x3_nn_align1", "tf32", "float"),
        (f"{ELEMENTWISE}BUnaryFunctor<at::native::AddFunctor<long> >, at::detail::Array<char*, 2> >", None, "long"),
        (f"{ELEMENTWISE}FillFunctor<c10::BFloat16>, std::array<char*, 1ul> >", None, "c10::BFloat16"),
        ("cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)", None, None),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda<float>>", None, None),
        ("nvjet_qqtst_128x256_128x6", "fp8", None),
        ("void my_float_kernel(int)", None, None),
    ],
)
def test_the_first_type_of_the_template_is_that_of_the_data(name, math_dtype, dtype):
    assert kernel_dtype(name, math_dtype) == dtype


@pytest.mark.parametrize(
    ("name", "item_bytes"),
    [
        ("void CatArrayBatchedCopy_contig<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 1>", 2),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)", 4),
        ("void CatArrayBatchedCopy<bool, unsigned int, 2, 128, 1>(bool*)", 1),
        ("void multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<c10::BFloat16, 2, 2, 0>", 2),
        ("void multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>", 4),
        ("void CatArrayBatchedCopy<OpaqueType<3u>, unsigned int>", None),
        ("void CatArrayBatchedCopy<OpaqueType<99999999999999999999u>, unsigned int>", None),
        ("Memcpy DtoD (Device -> Device)", None),
    ],
)
def test_a_copying_kernel_gives_the_size_of_its_items(name, item_bytes):
    assert kernel_item_bytes(name) == item_bytes
