# Faults in the element-wise kernels. Of RMSNorm only bf16 in whole chunks is built, of the activations all.
set(of_rms_norm SOURCE model/cuda/norm.cu TEST model_test
    CUT
    model/cuda/norm.cu
    [[: f.template operator()<T, Chunks::kSingle>()]] [[: (void)0]]
    framework/chunks_cuda.cuh
    [[f.template operator()<float>()]] [[(void)0]])
set(rms_norm FILE model/cuda/norm.cu ${of_rms_norm})
set(norm_order *ElementwiseEmulated.OrderOfThreadsDoesNotMatter)

evenkeel_mutation(rms_norm_sum_without_a_barrier ${rms_norm}
    FIND [[if (place.lane == 0) of_warp[place.warp] = value;
    __syncthreads();]]
    REPLACE [[if (place.lane == 0) of_warp[place.warp] = value;]]
    FILTER ${norm_order}
    EXPECT [[gpu emulator\] (race|unwritten)]])

evenkeel_mutation(rms_norm_sum_of_another_row ${rms_norm}
    FIND [[of_warp + place.slot * place.row_warps]]
    REPLACE [[of_warp]]
    FILTER ElementwiseEmulated.RmsNormAgreesWithTheCpu
    EXPECT [[FAILED.*RmsNormAgrees]])

evenkeel_mutation(rms_norm_sums_in_one_buffer ${rms_norm}
    FIND [[of_warp[r % 2], place]]
    REPLACE [[of_warp[0], place]]
    FILTER ${norm_order}
    EXPECT [[gpu emulator\] race]])

evenkeel_mutation(rms_norm_gain_sum_without_a_barrier
    FILE framework/chunks_cuda.cuh ${of_rms_norm}
    FIND [[of_slice[slice][lane] = sum;
    __syncthreads();]]
    REPLACE [[of_slice[slice][lane] = sum;]]
    FILTER ${norm_order}
    EXPECT [[gpu emulator\] (race|unwritten)]])

evenkeel_mutation(rms_norm_partial_sums_unwritten ${rms_norm}
    FIND [[if (begin >= rows.count) return;]]
    REPLACE [[if (begin >= rows.count - 1) return;]]
    FILTER ElementwiseEmulated.RmsNormAgreesWithTheCpu
    EXPECT [[gpu emulator\] unwritten]])

evenkeel_mutation(activation_last_chunk_dropped
    FILE model/cuda/activations.cu TEST model_test
    FIND [[if (at >= count) return;]]
    REPLACE [[if (at + kChunk<T> > count) return;]]
    FILTER *ElementwiseTest.GeluMatchesReference/cuda
    EXPECT [[FAILED.*GeluMatchesReference]])

evenkeel_mutation(swiglu_up_of_another_row
    FILE model/cuda/activations.cu TEST model_test
    FIND [[gate = hidden + row * rows.width;]]
    REPLACE [[gate = hidden;]]
    FILTER *ElementwiseTest.SwiGluMatchesReference/cuda
    EXPECT [[FAILED.*SwiGluMatchesReference]])
