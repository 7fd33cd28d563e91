# Faults in flash attention's backward kernels. Only bf16 is built, and a head width of 64.
set(backward TEST attention_test SOURCE attention/cuda/flash_attention_backward_bf16.cu
    CUT
    attention/cuda/flash_attention_backward.cuh
    [[return launch_flash_backward<T, 96>(problem)]] [[return]]
    attention/cuda/flash_attention_backward.cuh
    [[return launch_flash_backward<T, 128>(problem)]] [[return]]
    attention/cuda/flash_attention_backward.cuh
    [[return launch_flash_backward<T, 256>(problem)]] [[return]])
set(rows attention/cuda/flash_attention_backward_rows.cuh)
set(keys attention/cuda/flash_attention_backward_keys.cuh)
set(queries attention/cuda/flash_attention_backward_queries.cuh)
set(causal *FlashBackwardCudaTest*/causal_129_bf16)

evenkeel_mutation(backward_delta_of_another_row ${backward}
    FILE ${rows}
    FIND [[float delta = lane / 4 % 2 == 0 ? diagonal]]
    REPLACE [[float delta = lane / 4 % 2 != 0 ? diagonal]]
    FILTER ${causal}
    EXPECT [[FAILED.*causal_129]])

evenkeel_mutation(backward_workspace_unwritten ${backward}
    FILE ${rows}
    FIND [[to[2 * problem.padded_queries + row] = delta;]]
    FILTER ${causal}
    EXPECT [[gpu emulator\] unwritten]])

evenkeel_mutation(backward_probabilities_without_a_barrier ${backward}
    FILE ${keys}
    FIND [[__syncthreads();  // p has been handed over]]
    FILTER ${causal}
    EXPECT [[gpu emulator\] (race|unwritten)]])

evenkeel_mutation(backward_rows_without_their_wait ${backward}
    FILE ${keys}
    FIND [[wait_for_copies<0>();
        __syncthreads();  // this step's rows are here]]
    REPLACE [[__syncthreads();  // this step's rows are here]]
    FILTER ${causal}
    EXPECT [[gpu emulator\] asynchronous copy]])

evenkeel_mutation(backward_last_head_of_a_group_dropped ${backward}
    FILE ${keys}
    FIND [[const int steps = p.group * (range.end - range.begin);]]
    REPLACE [[const int steps = (p.group - 1) * (range.end - range.begin);]]
    FILTER ${causal}
    EXPECT [[FAILED.*causal_129]])

evenkeel_mutation(backward_masked_block_taken_for_whole ${backward}
    FILE ${queries}
    FIND [[if (warp_range.whole_begin <= block && block < warp_range.whole_end)]]
    REPLACE [[if (warp_range.whole_begin <= block)]]
    FILTER ${causal}
    EXPECT [[FAILED.*causal_129]])

evenkeel_mutation(backward_cells_times_what_is_not_transposed ${backward}
    FILE attention/cuda/flash_attention_backward_products.cuh
    FIND [[right.template load<true>(16 * k, j)]]
    REPLACE [[right.load(16 * k, j)]]
    FILTER ${causal}
    EXPECT [[FAILED.*causal_129]])

evenkeel_mutation(backward_keys_not_scaled ${backward}
    FILE ${keys}
    FIND [[const float scale = finds_p ? 1.0f : p.scale;]]
    REPLACE [[const float scale = 1.0f;]]
    FILTER ${causal}
    EXPECT [[FAILED.*causal_129]])

set(methods *FlashBackwardCudaMethodTest*)
set(sinks ${methods}sinks_causal_129_bf16)
set(capped ${methods}cap_2_causal_129_bf16)

evenkeel_mutation(backward_derivative_of_the_cap_missing_for_keys ${backward}
    FILE ${keys}
    FIND [[of_uncapped.c[c] = cell * derivative;]]
    REPLACE [[of_uncapped.c[c] = cell;]]
    FILTER ${capped}
    EXPECT [[FAILED.*cap_2_causal_129]])

evenkeel_mutation(backward_derivative_of_the_cap_missing_for_queries ${backward}
    FILE ${queries}
    FIND [[if constexpr (kCapped) ds *= fmaf(-cell, cell, 1.0f);]]
    FILTER ${capped}
    EXPECT [[FAILED.*cap_2_causal_129]])

evenkeel_mutation(backward_half_of_the_rows_missing_for_the_sink ${backward}
    FILE ${rows}
    FIND [[sink_share += of_sink * delta;]]
    REPLACE [[sink_share = of_sink * delta;]]
    FILTER ${sinks}
    EXPECT [[FAILED.*sinks_causal_129]])
