# Faults in AdamW and in the gradient's norm.
set(adamw SOURCE framework/optimizer/adamw_cuda.cu FILE framework/optimizer/adamw_cuda.cu TEST framework_test
    FILTER *OptimizerGpuTest.UpdatesToTheBitsOfTheCpu/cuda)
set(squared_norm SOURCE framework/optimizer/gradient_norm_cuda.cu FILE framework/optimizer/gradient_norm_cuda.cu TEST framework_test
    FILTER *OptimizerGpuTest.AddsTheSquaresOfTheGradientsItOwns/cuda)

evenkeel_mutation(adamw_scale_without_a_barrier ${adamw}
    FIND [[    __syncthreads();
]]
    REPLACE ""
    EXPECT [[gpu emulator\] race]])

evenkeel_mutation(adamw_contracts_the_mean ${adamw}
    FIND [[__fadd_rn(__fmul_rn(s.beta1, m), __fmul_rn(s.one_minus_beta1, g))]]
    REPLACE [[__fmaf_rn(s.beta1, m, __fmul_rn(s.one_minus_beta1, g))]]
    EXPECT [[FAILED.*UpdatesToTheBitsOfTheCpu]])

evenkeel_mutation(adamw_decays_all ${adamw}
    FIND [[decays ? scalars.decay : 0.0f]]
    REPLACE [[decays ? scalars.decay : scalars.decay]]
    EXPECT [[FAILED.*UpdatesToTheBitsOfTheCpu]])

evenkeel_mutation(adamw_vectors_anywhere ${adamw}
    FIND [[-chunk.begin & (kVector - 1)]]
    REPLACE [[0]]
    EXPECT [[gpu emulator\] misaligned]])

evenkeel_mutation(adamw_loses_the_last_element ${adamw}
    FIND [[thread - kVector < tail]]
    REPLACE [[thread - kVector < tail - 1]]
    EXPECT [[FAILED.*UpdatesToTheBitsOfTheCpu]])

evenkeel_mutation(adamw_ignores_the_limit ${adamw}
    FIND [[clip_norm > 0.0 && norm > clip_norm]]
    REPLACE [[clip_norm > 1.0 && norm > clip_norm]]
    EXPECT [[FAILED.*UpdatesToTheBitsOfTheCpu]])

evenkeel_mutation(squared_norm_without_a_barrier ${squared_norm}
    FIND [[    __syncthreads();
]]
    REPLACE ""
    EXPECT [[gpu emulator\] race]])

evenkeel_mutation(squared_norm_of_what_others_own ${squared_norm}
    FIND [[(chunk.flags & ParameterChunk::kOwned) != 0]]
    REPLACE [[chunk.count > 0]]
    EXPECT [[FAILED.*AddsTheSquaresOfTheGradientsItOwns]])

evenkeel_mutation(squared_norm_leaves_a_chunk_unwritten ${squared_norm}
    FIND [[if (threadIdx.x == 0) sums[blockIdx.x] = sum;]]
    REPLACE [[if (threadIdx.x == 0 && blockIdx.x != 1) sums[blockIdx.x] = sum;]]
    EXPECT [[gpu emulator\] unwritten]])

evenkeel_mutation(squared_norm_in_single_precision ${squared_norm}
    FIND [[const double wide = value;  // its square is exact
    return __fma_rn(wide, wide, sum);]]
    REPLACE [[return sum + value * value;]]
    EXPECT [[FAILED.*AddsTheSquaresOfTheGradientsItOwns]])
