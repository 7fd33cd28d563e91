# Faults in flash attention's forward kernel, and in what all attention kernels share. Only bf16 is built, and a
# head width of 64.
set(forward TEST attention_test SOURCE attention/cuda/flash_attention_forward_64_96.cu
    CUT
    attention/cuda/flash_attention_forward_64_96.cu
    [[launch_flash_forward<64, 96>]] [[launch_flash_forward<64>]]
    attention/cuda/flash_attention_forward.cuh
    [[launch_flash_forward_as<__half, kHeadDim>(problem, partials)]] [[(void)0]])
set(kernel attention/cuda/flash_attention_forward.cuh)
set(causal *FlashForwardCudaTest*/causal_257_bf16)
set(ragged *FlashForwardCudaTest*/head_dim_64_ragged_bf16)
set(anywhere *FlashForwardCudaPropertyTest.MaximumIsRightWhereverItComes/bf16)

evenkeel_mutation(forward_keys_overwritten_without_a_barrier ${forward}
    FILE ${kernel}
    FIND [[__syncthreads();  // V is there, and no warp needs K any more]]
    FILTER ${causal}
    EXPECT [[gpu emulator\] race]])

evenkeel_mutation(forward_values_without_their_wait ${forward}
    FILE ${kernel}
    FIND [[wait_for_copies<0>();
        __syncthreads();  // V is there]]
    REPLACE [[__syncthreads();  // V is there]]
    FILTER ${causal}
    EXPECT [[gpu emulator\] asynchronous copy]])

evenkeel_mutation(forward_swapped_fragment_registers ${forward}
    FILE ${kernel}
    FIND [[multiply_add<T>(s[i][2 * n], rows[i], keys.r[0], keys.r[1]);]]
    REPLACE [[multiply_add<T>(s[i][2 * n], rows[i], keys.r[1], keys.r[0]);]]
    FILTER ${ragged}
    EXPECT [[FAILED.*head_dim_64_ragged]])

evenkeel_mutation(forward_swapped_rows_of_a_square ${forward}
    FILE attention/cuda/mma.cuh
    FIND [["+f"(sum.c[0]), "+f"(sum.c[1]), "+f"(sum.c[2]), "+f"(sum.c[3])
            : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
    } else {]]
    REPLACE [["+f"(sum.c[0]), "+f"(sum.c[1]), "+f"(sum.c[2]), "+f"(sum.c[3])
            : "r"(a.r[1]), "r"(a.r[0]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
    } else {]]
    FILTER ${ragged}
    EXPECT [[FAILED.*head_dim_64_ragged]])

evenkeel_mutation(forward_values_not_transposed ${forward}
    FILE attention/cuda/mma.cuh
    FIND [[ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16]]
    REPLACE [[ldmatrix.sync.aligned.m8n8.x4.shared.b16]]
    FILTER ${ragged}
    EXPECT [[FAILED.*head_dim_64_ragged]])

evenkeel_mutation(forward_diagonal_not_visible ${forward}
    FILE attention/cuda/flash_attention_mask.cuh
    FIND [[seen.end = min(seen.end, position + 1);]]
    REPLACE [[seen.end = min(seen.end, position);]]
    FILTER ${causal}
    EXPECT [[FAILED.*causal_257]])

evenkeel_mutation(forward_divergent_shuffle ${forward}
    FILE ${kernel}
    FIND [[m = max_or_nan(m, __shfl_xor_sync(0xffffffffu, m, 1));]]
    REPLACE [[if (m > -INFINITY) m = max_or_nan(m, __shfl_xor_sync(0xffffffffu, m, 1));]]
    FILTER ${causal}
    EXPECT [[gpu emulator\] divergence]])

evenkeel_mutation(forward_swizzle_of_the_writer_only ${forward}
    FILE attention/cuda/mma.cuh
    FIND [[shared_(Layout::offset(row_, thread % Layout::kChunks))]]
    REPLACE [[shared_(row_ * Layout::kRowBytes + thread % Layout::kChunks * 16)]]
    FILTER ${ragged}
    EXPECT [[FAILED.*head_dim_64_ragged]])

evenkeel_mutation(forward_last_block_not_masked ${forward}
    FILE ${kernel}
    FIND [[const bool masked = n < blocks.whole_begin || n >= blocks.whole_end;]]
    REPLACE [[const bool masked = n < blocks.whole_begin;]]
    FILTER ${ragged}
    EXPECT [[FAILED.*head_dim_64_ragged]])

evenkeel_mutation(forward_rows_beyond_the_last_written ${forward}
    FILE ${kernel}
    FIND [[q_tile, p.queries - query);]]
    REPLACE [[q_tile, kRows);]]
    FILTER ${ragged}
    EXPECT [[gpu emulator\] (out of bounds|race)]])

evenkeel_mutation(forward_values_not_filled_up_with_zeros ${forward}
    FILE ${kernel}
    FIND [[v_carrier.template load_at<false>(v_at, v_source, p.keys - n * kKeys);]]
    REPLACE [[v_carrier.template load_at<true>(v_at, v_source, kKeys);]]
    FILTER ${ragged}
    EXPECT [[gpu emulator\] out of bounds]])

evenkeel_mutation(forward_stale_maximum ${forward}
    FILE ${kernel}
    FIND [[base[i][half] = to;]]
    FILTER ${anywhere}
    EXPECT [[FAILED.*MaximumIsRight]])

evenkeel_mutation(forward_output_not_scaled_to_the_new_maximum ${forward}
    FILE ${kernel}
    FIND [[o[i][n].c[2 * half] *= factor;]]
    FILTER ${anywhere}
    EXPECT [[FAILED.*MaximumIsRight]])

evenkeel_mutation(forward_keys_of_another_group ${forward}
    FILE ${kernel}
    FIND [[const int kv_head = head / p.group;]]
    REPLACE [[const int kv_head = head % (p.heads / p.group);]]
    FILTER ${causal}
    EXPECT [[FAILED.*causal_257]])

evenkeel_mutation(forward_a_row_of_the_sum_lost ${forward}
    FILE ${kernel}
    FIND [[total = quad_sum(total);]]
    FILTER ${ragged}
    EXPECT [[FAILED.*head_dim_64_ragged]])

evenkeel_mutation(forward_partial_results_unwritten ${forward}
    FILE ${kernel}
    FIND [[partials.rows[index] = mine.rows;]]
    FILTER ${ragged}
    EXPECT [[gpu emulator\] unwritten]])

evenkeel_mutation(forward_statistics_without_a_barrier ${forward}
    FILE ${kernel}
    FIND [[if (lane == 0) of_warp[thread / 32] = mine;
    __syncthreads();]]
    REPLACE [[if (lane == 0) of_warp[thread / 32] = mine;]]
    FILTER ${ragged}
    EXPECT [[gpu emulator\] (race|unwritten)]])

evenkeel_mutation(forward_offsets_of_32_bits ${forward}
    FILE attention/cuda/mma.cuh
    FIND [[global_(row_ * stride * 2 + thread % Layout::kChunks * 16)]]
    REPLACE [[global_(row_ * static_cast<int>(stride * 2) + thread % Layout::kChunks * 16)]]
    FILTER *FarStridesCudaTest.AttentionReachesThem*
    EXPECT [[gpu emulator\] out of bounds|FAILED.*FarStrides]])

set(methods *FlashForwardCudaMethodTest*)
set(sinks ${methods}sinks_causal_129_bf16)
set(capped ${methods}cap_2_causal_129_bf16)

evenkeel_mutation(forward_sink_left_out_of_the_sum ${forward}
    FILE ${kernel}
    FIND [[sum[i][half] = fmaf(factor, sum[i][half], of_sink);]]
    REPLACE [[sum[i][half] *= factor;]]
    FILTER ${sinks}
    EXPECT [[FAILED.*sinks_causal_129]])

evenkeel_mutation(forward_mask_lost_under_softcap ${forward}
    FILE ${kernel}
    FIND [[return fminf(tanh_approx(score * cap_scale), score + kMost);]]
    REPLACE [[return tanh_approx(score * cap_scale);]]
    FILTER ${capped}
    EXPECT [[FAILED.*cap_2_causal_129]])
