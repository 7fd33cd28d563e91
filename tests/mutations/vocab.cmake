# Faults in the kernels of the vocabulary.
set(embedding FILE parallel/embedding_cuda.cu TEST parallel_test)
set(cross_entropy FILE parallel/cross_entropy_cuda.cu TEST parallel_test)
set(embedding_order *EmbeddingTest.GradientOfManyTokens/cuda)
set(cross_entropy_widths *CrossEntropyTest.MatchesTheDefinitionAtEveryWidth/cuda)

evenkeel_mutation(embedding_rows_in_another_order ${embedding}
    FIND [[static_cast<std::uint32_t>(begin + i);]]
    REPLACE [[static_cast<std::uint32_t>((begin + i) ^ 1);]]
    FILTER ${embedding_order}
    EXPECT [[FAILED.*GradientOfManyTokens]])

evenkeel_mutation(embedding_tokens_sorted_without_a_barrier ${embedding}
    FIND [[            __syncthreads();
            for (int pair]]
    REPLACE [[            for (int pair]]
    FILTER ${embedding_order}
    EXPECT [[gpu emulator\] (race|unwritten)]])

evenkeel_mutation(embedding_last_tile_not_merged ${embedding}
    FIND [[for (int begin = 0; begin < count; begin += kTile)]]
    REPLACE [[for (int begin = 0; begin + kTile < count; begin += kTile)]]
    FILTER ${embedding_order}
    EXPECT [[gpu emulator\]|FAILED.*GradientOfManyTokens]])

evenkeel_mutation(embedding_run_summed_twice ${embedding}
    FIND [[(first > 0 && row_of(keys[first - 1]) == row)]]
    REPLACE [[(first > 1 && row_of(keys[first - 1]) == row)]]
    FILTER ${embedding_order}
    EXPECT [[gpu emulator\] race|FAILED.*GradientOfManyTokens]])

evenkeel_mutation(cross_entropy_old_sum_not_rescaled ${cross_entropy}
    FIND [[mine.sum *= exp_approx(mine.max - larger);]]
    FILTER ${cross_entropy_widths}
    EXPECT [[FAILED.*MatchesTheDefinition]])

evenkeel_mutation(cross_entropy_rows_without_a_barrier ${cross_entropy}
    FIND [[sum_of_warp[warp] = mine.sum;
    __syncthreads();]]
    REPLACE [[sum_of_warp[warp] = mine.sum;]]
    FILTER ${cross_entropy_widths}
    EXPECT [[gpu emulator\] (race|unwritten)]])

evenkeel_mutation(cross_entropy_last_warp_lost ${cross_entropy}
    FIND [[w < static_cast<int>(blockDim.x) / kWarp]]
    REPLACE [[w + 1 < static_cast<int>(blockDim.x) / kWarp]]
    FILTER ${cross_entropy_widths}
    EXPECT [[FAILED.*MatchesTheDefinition]])

evenkeel_mutation(cross_entropy_ignored_rows_get_a_gradient ${cross_entropy}
    FIND [[if (!target.ignored) {]]
    REPLACE [[if (true) {]]
    FILTER ${cross_entropy_widths}
    EXPECT [[FAILED.*MatchesTheDefinition]])

evenkeel_mutation(cross_entropy_loss_of_half_the_rows ${cross_entropy}
    FIND [[i < count; i += kFinishThreads]]
    REPLACE [[i + 1 < count; i += kFinishThreads]]
    FILTER *CrossEntropyTest.AddsUpManyRows/cuda
    EXPECT [[FAILED.*AddsUpManyRows]])
