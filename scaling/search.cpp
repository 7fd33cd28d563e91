#include "scaling/search.h"

#include <algorithm>
#include <functional>

#include "framework/error.h"

namespace evenkeel::scaling {
namespace {

constexpr std::int64_t kMostTensorParallel = 64, kMostMicroBatch = 16, kMostChunks = 8;
// A layout whose batch would be less than this of what was asked for is left out.
constexpr double kLeastBatch = 0.95;

std::vector<std::int64_t> divisors(std::int64_t value, std::int64_t most) {
    std::vector<std::int64_t> found;
    for (std::int64_t d = 1; d <= std::min(value, most); ++d) {
        if (value % d == 0) found.push_back(d);
    }
    return found;
}

// Why a number of tensor-parallel ranks can't be; "" where it can.
std::string refusal(const ModelConfig& model, std::int64_t P) {
    try {
        model.validate(P, Device::kCuda);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

// Settings of a rank beside how many there are.
template <typename Visit>
void each_setting(const Layout& start, const Visit& visit) {
    for (const bool sequence : {false, true}) {
        if (sequence && start.tensor_parallel == 1) continue;
        for (const Cut cut : {Cut::kNothing, Cut::kOptimizer}) {
            if (cut != Cut::kNothing && start.data_parallel == 1) continue;
            for (const Again again : kOwnAgain) {
                Layout layout = start;
                layout.sequence_parallel = sequence, layout.cut = cut, layout.again = again;
                visit(layout);
            }
        }
    }
}

std::string tensor_and_pipeline(const Layout& layout) {
    return concat(layout.tensor_parallel, " ", layout.pipeline_parallel);
}

}  // namespace

Candidate evaluate(const Hardware& hardware, const Shares& shares, const StepPlan& plan) {
    Candidate candidate{plan, predict_step(hardware, shares, plan), 0};
    candidate.memory = plan_memory(plan).total();
    return candidate;
}

Found search(const Hardware& hardware, const Shares& shares, const Space& space) {
    const auto positive = [](const char* name, std::int64_t value) {
        EVENKEEL_CHECK_CODE(value > 0, ErrorCode::kConfig, "scale", name, ": got ", value,
                            ", want a positive number");
    };
    positive("gpus", space.gpus);
    positive("batch", space.batch);
    positive("seq_len", space.seq_len);
    const std::size_t usable = usable_bytes(hardware);
    Found found;
    std::map<std::string, Candidate> fastest;

    const auto consider = [&](const Layout& layout) {
        if (layout.sequence_parallel &&
            layout.micro_batch * layout.seq_len % layout.tensor_parallel != 0) {
            return;
        }
        const Candidate candidate = evaluate(
            hardware, shares, {space.model, layout, {}, space.packed, space.async_checkpoints});
        ++found.tried;
        if (candidate.memory > usable) {
            ++found.too_large;
            const auto [at, is_new] =
                found.smallest_of.try_emplace(layout.tensor_parallel, candidate.memory);
            if (!is_new) at->second = std::min(at->second, candidate.memory);
            if (!found.smallest || candidate.memory < found.smallest->memory) {
                found.smallest = candidate;
            }
            return;
        }
        const auto [at, is_new] =
            fastest.try_emplace(tensor_and_pipeline(candidate.plan.layout), candidate);
        const bool faster = candidate.tokens_per_second() > at->second.tokens_per_second();
        if (!is_new && faster) at->second = candidate;
    };

    const std::int64_t node = hardware.gpus_per_node;
    for (const std::int64_t P :
         divisors(space.gpus, space.across_nodes ? kMostTensorParallel : node)) {
        if (node % P != 0 && P % node != 0) continue;
        const std::string why = refusal(space.model, P);
        if (!why.empty()) {
            found.refused[P] = why;
            continue;
        }
        const std::int64_t stages = space.pipeline ? space.model.num_layers : 1;
        const std::int64_t tried_before = found.tried;
        for (const std::int64_t p : divisors(space.gpus / P, stages)) {
            const std::int64_t Q = space.gpus / (P * p);
            for (std::int64_t size = 1; size <= kMostMicroBatch; size *= 2) {
                const std::int64_t unit = Q * size, m = space.batch / unit;
                const bool enough =
                    static_cast<double>(m * unit) >= kLeastBatch * static_cast<double>(space.batch);
                if (m == 0 || !enough) continue;
                for (std::int64_t v = 1; v <= (p == 1 ? 1 : kMostChunks); v *= 2) {
                    // Interleaved parts want whole rounds of stages (Narayanan et al. 2021, section 2.2).
                    if (v > 1 && (m % p != 0 || v * p > space.model.num_layers)) continue;
                    Layout start;
                    start.tensor_parallel = P, start.pipeline_parallel = p;
                    start.pipeline_chunks = v, start.data_parallel = Q;
                    start.micro_batch = size, start.batch = m * unit;
                    start.seq_len = space.seq_len;
                    each_setting(start, consider);
                }
            }
        }
        if (found.tried == tried_before) {
            found.refused[P] = concat("its ", space.gpus / P, " copies do not divide a batch of ",
                                      space.batch, " sequences, nor one up to 5 % smaller");
        }
    }
    if (found.tried == 0) {
        const auto& [P, why] = *found.refused.rbegin();
        throw_error(ErrorCode::kConfig, "scale",
                    concat("search: no layout divides ", space.gpus, " GPUs and a batch of ",
                           space.batch, " sequences; with tensor_parallel=", P, ", ", why));
    }
    for (const auto& [key, candidate] : fastest) {
        found.best.push_back(candidate);
        found.smallest_of.erase(candidate.plan.layout.tensor_parallel);
    }
    std::sort(found.best.begin(), found.best.end(), [](const Candidate& a, const Candidate& b) {
        return a.tokens_per_second() > b.tokens_per_second();
    });
    return found;
}

std::vector<Change> changes_of(const Hardware& hardware,
                               const Shares& shares,
                               const Candidate& best) {
    std::vector<Change> changes;
    const std::size_t usable = usable_bytes(hardware);
    const auto add = [&](const std::string& setting, const std::function<void(Layout&)>& set) {
        Change change{setting, std::nullopt, false};
        StepPlan plan = best.plan;
        set(plan.layout);
        try {
            change.candidate = evaluate(hardware, shares, plan);
            change.fits = change.candidate->memory <= usable;
        } catch (const Error&) {
            // Does not divide.
        }
        changes.push_back(std::move(change));
    };
    const Layout& l = best.plan.layout;
    if (l.tensor_parallel > 1) {
        add(concat("parallel.sequence_parallel=", l.sequence_parallel ? "false" : "true"),
            [](Layout& layout) { layout.sequence_parallel = !layout.sequence_parallel; });
    }
    if (l.data_parallel > 1) {
        add(concat("parallel.zero_stage=", l.cut == Cut::kOptimizer ? 0 : 1), [](Layout& layout) {
            layout.cut = layout.cut == Cut::kOptimizer ? Cut::kNothing : Cut::kOptimizer;
        });
    }
    for (const Again again : kOwnAgain) {
        if (again == l.again) continue;
        add(concat("model.recompute=", name_of(again)),
            [=](Layout& layout) { layout.again = again; });
    }
    for (const std::int64_t size : {l.micro_batch / 2, l.micro_batch * 2}) {
        if (size == 0) continue;
        add(concat("trainer.micro_batch_size=", size),
            [=](Layout& layout) { layout.micro_batch = size; });
    }
    return changes;
}

}  // namespace evenkeel::scaling
