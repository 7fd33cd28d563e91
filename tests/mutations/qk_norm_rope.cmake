# Faults in QK-norm and RoPE. Only bf16 is built, and one head width.
set(norm_cut
    attention/cuda/qk_norm_rope_launch.cuh
    [[f.template operator()<__half, kDim, kLayout, kNorms>()]] [[(void)0]]
    attention/cuda/qk_norm_rope_launch.cuh
    [[for_norms.template operator()<kLayout, Norms::kAll>()]] [[(void)0]]
    attention/cuda/qk_norm_rope_launch.cuh
    [[return for_layout.template operator()<Layout::kInterleaved>()]] [[return]]
    attention/cuda/qk_norm_rope_launch.cuh
    [[return for_layout.template operator()<Layout::kAny>()]] [[return]])
set(norm_64 ${norm_cut}
    attention/cuda/qk_norm_rope_launch.cuh [[dispatch_value<64, 96, 128, 256>]] [[dispatch_value<64>]])
set(norm_128 ${norm_cut}
    attention/cuda/qk_norm_rope_launch.cuh [[dispatch_value<64, 96, 128, 256>]] [[dispatch_value<128>]])
set(norm_all_64
    attention/cuda/qk_norm_rope_launch.cuh
    [[f.template operator()<__half, kDim, kLayout, kNorms>()]] [[(void)0]]
    attention/cuda/qk_norm_rope_launch.cuh
    [[return for_norms.template operator()<kLayout, Norms::kUsual>()]] [[return]]
    attention/cuda/qk_norm_rope_launch.cuh
    [[return for_layout.template operator()<Layout::kInterleaved>()]] [[return]]
    attention/cuda/qk_norm_rope_launch.cuh
    [[return for_layout.template operator()<Layout::kAny>()]] [[return]]
    attention/cuda/qk_norm_rope_launch.cuh [[dispatch_value<64, 96, 128, 256>]] [[dispatch_value<64>]])
set(norm_forward SOURCE attention/cuda/qk_norm_rope_forward.cu TEST attention_test)
set(norm_backward SOURCE attention/cuda/qk_norm_rope_backward.cu TEST attention_test)
set(partial_rotation *QkNormRopeDeviceVariants*cuda_bf16_d128_r96_half_split)
set(whole_rotation *QkNormRopeDeviceVariants*cuda_bf16_d64_r64_half_split)

evenkeel_mutation(norm_pairs_of_the_whole_width ${norm_forward} CUT ${norm_128}
    FILE attention/cuda/qk_norm_rope.cuh
    FIND [[const int half = common.rotary_dim / kHeld;]]
    REPLACE [[const int half = kDim / kHeld;]]
    FILTER ${partial_rotation}
    EXPECT [[FAILED.*d128_r96]])

evenkeel_mutation(norm_gain_of_another_head ${norm_forward} CUT ${norm_64}
    FILE attention/cuda/qk_norm_rope_forward.cu
    FIND [[part.gain + place.head * part.gain_head]]
    REPLACE [[part.gain + place.head / 2 * part.gain_head]]
    FILTER ${whole_rotation}
    EXPECT [[FAILED.*d64_r64]])

evenkeel_mutation(norm_statistic_of_half_the_row ${norm_forward} CUT ${norm_64}
    FILE attention/cuda/qk_norm_rope.cuh
    FIND [[for (int step = kLanes / 2; step > 0; step /= 2)]]
    REPLACE [[for (int step = kLanes / 2; step > 1; step /= 2)]]
    FILTER ${whole_rotation}
    EXPECT [[FAILED.*d64_r64]])

evenkeel_mutation(norm_divergent_shuffle ${norm_forward} CUT ${norm_64}
    FILE attention/cuda/qk_norm_rope_forward.cu
    FIND [[factor = find_rstd<kDim>(v, common, exists);]]
    REPLACE [[if (exists) factor = find_rstd<kDim>(v, common, exists);]]
    FILTER ${whole_rotation}
    EXPECT [[gpu emulator\] divergence]])

evenkeel_mutation(norm_sums_without_a_barrier ${norm_backward} CUT ${norm_64}
    FILE attention/cuda/qk_norm_rope_backward.cu
    FIND [[        __syncthreads();
        for (int s = first;]]
    REPLACE [[        for (int s = first;]]
    FILTER ${whole_rotation}
    EXPECT [[gpu emulator\] race]])

evenkeel_mutation(norm_reads_unwritten_shared_memory ${norm_backward} CUT ${norm_64}
    FILE attention/cuda/qk_norm_rope_backward.cu
    FIND [[for (int c = 0; c < kHeld; ++c) shared[warp][c][lane] = sums[c];]]
    REPLACE [[for (int c = 1; c < kHeld; ++c) shared[warp][c][lane] = sums[c];]]
    FILTER ${whole_rotation}
    EXPECT [[gpu emulator\] unwritten]])

evenkeel_mutation(norm_loses_a_row_of_gain_gradients ${norm_backward} CUT ${norm_64}
    FILE attention/cuda/qk_norm_rope_backward.cu
    FIND [[row < part.rows; row += kSlices]]
    REPLACE [[row + 1 < part.rows; row += kSlices]]
    FILTER ${whole_rotation}
    EXPECT [[FAILED.*d64_r64]])

evenkeel_mutation(norm_leaves_a_workspace_unwritten ${norm_backward} CUT ${norm_64}
    FILE attention/cuda/qk_norm_rope_backward.cu
    FIND [[if (!place.used) return;]]
    REPLACE [[if (!place.used || place.group == 1) return;]]
    FILTER ${whole_rotation}
    EXPECT [[gpu emulator\] unwritten]])

evenkeel_mutation(norm_takes_off_the_whole_radial_part ${norm_backward} CUT ${norm_all_64}
    FILE attention/cuda/qk_norm_rope_backward.cu
    FIND [[* common.inverse_divisor * lambda;]]
    REPLACE [[* common.inverse_divisor;]]
    FILTER QkNormAnneal.HalfwayIsTheRootOfTheFactor/cuda_bf16
    EXPECT [[FAILED.*Halfway]])
