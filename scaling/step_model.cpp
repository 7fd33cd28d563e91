#include "scaling/step_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "framework/error.h"

namespace evenkeel::scaling {
namespace {

constexpr double kActivationBytes = 2.0, kValueBytes = 2.0;
// Parts that a product and a sum beside it are cut into: the first part of the sum has nothing to hide behind.
constexpr double kOverlapParts = 4.0;

// Communication, exposed and hidden.
struct Sent {
    double exposed = 0.0, hidden = 0.0;
    Sent& operator+=(const Sent& other) {
        exposed += other.exposed, hidden += other.hidden;
        return *this;
    }
};

// A message beside work that lasts `beside`; `first` of it comes before or after that work.
Sent beside(double seconds, double first, double beside_seconds) {
    const double exposed = first + std::max(0.0, seconds - first - beside_seconds);
    return {exposed, seconds - exposed};
}

// What tensor parallelism sends for a micro-batch.
class TensorSums {
  public:
    TensorSums(const Hardware& hardware, const Network& network, const StepPlan& plan)
        : plan_(plan) {
        const Group group = tensor_group(plan.layout, hardware.gpus_per_node);
        const Layout& l = plan.layout;
        const double bytes = kActivationBytes * static_cast<double>(l.micro_batch * l.seq_len) *
                             static_cast<double>(plan.model.width);
        half_ = half_seconds(network, group, bytes);
        sum_ = l.sequence_parallel ? 2.0 * half_ : all_reduce_seconds(network, group, bytes);
    }
    // Of a layer's forward, beside products that last `products` where these overlap.
    Sent forward(double products) const { return sums(layer_sums(), products); }
    Sent backward(double products) const {
        Sent sent = sums(layer_sums(), products);
        if (plan_.layout.sequence_parallel) {
            // Inputs once more, beside the product that makes the gradient of the input.
            sent += beside((is_parallel() ? 1.0 : 2.0) * half_, 0.0, products / 2.0);
        }
        return sent;
    }
    Sent again(double products) const {
        const bool cut = plan_.layout.sequence_parallel;
        switch (plan_.layout.again) {
            case Again::kNone:
            case Again::kElementwise:
            case Again::kScores:
            case Again::kHalf:
                return {};
            case Again::kAttention:
                return cut && !is_parallel() ? Sent{half_, 0.0} : Sent{};
            case Again::kFull:
                break;
        }
        if (plan_.software.again_whole) return sums(layer_sums(), products);
        if (is_parallel()) return {};
        const double scatters = plan_.model.architecture == Architecture::kPreNorm ? 1.0 : 2.0;
        return cut ? Sent{(2.0 + scatters) * half_, 0.0} : Sent{scatters * sum_, 0.0};
    }
    // Of embedding and head, forward and backward.
    Sent ends() const { return {2.0 * sum_, 0.0}; }

  private:
    bool is_parallel() const { return plan_.model.architecture == Architecture::kParallel; }
    // Both layers of a parallel block read the same rows: one gather, and a scatter for each unless these are merged.
    double layer_sums() const {
        if (!is_parallel()) return 2.0;
        if (plan_.software.merged_parallel) return 1.0;
        return plan_.layout.sequence_parallel ? 1.5 : 2.0;
    }
    Sent sums(double count, double products) const {
        const double seconds = count * sum_;
        if (!plan_.software.overlap_tensor) return {seconds, 0.0};
        return beside(seconds, seconds / kOverlapParts, products);
    }
    const StepPlan& plan_;
    double half_ = 0.0, sum_ = 0.0;
};

// Data-parallel messages of a step, beside one micro-batch's forward and backward.
Sent data_messages(const Hardware& hardware,
                   const Network& network,
                   const StepPlan& plan,
                   double parameters,
                   double forward,
                   double backward) {
    const Layout& l = plan.layout;
    const Group group = data_group(l, hardware.gpus_per_node);
    if (group.size() == 1) return {};
    const Software& software = plan.software;
    const double gradients = static_cast<double>(software.gradient_bytes) * parameters;
    const double values = kValueBytes * parameters;
    const auto half = [&](double bytes) {
        return half_seconds(network, group, bytes, software.logarithmic);
    };
    if (l.cut == Cut::kWeights) {
        const auto layers =
            static_cast<double>(plan.model.num_layers) / static_cast<double>(l.pipeline_parallel);
        const double gather = layers * half(values / layers);
        const double scatter = layers * half(gradients / layers);
        Sent sent = beside(gather, gather / layers, forward);
        sent += beside(gather + scatter, scatter / layers, backward);
        const auto m = static_cast<double>(l.micro_batches());
        return {sent.exposed * m, sent.hidden * m};
    }
    const double bucket = static_cast<double>(software.bucket_mib) * 1024.0 * 1024.0;
    const double buckets = software.bucket_mib == 0 ? 1.0 : std::ceil(gradients / bucket);
    const auto messages = [&](double bytes, bool is_half, bool overlap, double work) {
        const double one =
            is_half ? half(bytes / buckets) : all_reduce_seconds(network, group, bytes / buckets);
        return overlap ? beside(buckets * one, one, work) : Sent{buckets * one, 0.0};
    };
    const bool cut = l.cut == Cut::kOptimizer;
    Sent sent = messages(gradients, cut, software.overlap_gradients, backward);
    if (cut) sent += messages(values, true, software.overlap_weights, forward);
    return sent;
}

double optimizer_seconds(const Hardware& hardware,
                         const Shares& shares,
                         const StepPlan& plan,
                         double parameters) {
    const Layout& l = plan.layout;
    const double own =
        parameters / static_cast<double>(l.cut == Cut::kNothing ? 1 : l.data_parallel);
    const double bytes = 34.0 * own + static_cast<double>(plan.software.gradient_bytes) *
                                          (l.cut == Cut::kWeights ? own : parameters);
    return bytes / (hardware.memory_gigabytes_per_second * 1e9 * shares.memory);
}

// Layers of the stage that has most to do, and whether it has the head too. Where stages can't be alike, the first and
// the last have the fewer layers.
std::pair<double, bool> longest_stage(std::int64_t layers,
                                      std::int64_t stages,
                                      double layer,
                                      double head) {
    const std::int64_t most = (layers + stages - 1) / stages;
    const std::int64_t last = layers % stages == 0 ? most : most - 1;
    const bool has_head =
        static_cast<double>(last) * layer + head > static_cast<double>(most) * layer;
    return {static_cast<double>(has_head ? last : most), has_head};
}

}  // namespace

Group tensor_group(const Layout& layout, std::int64_t gpus_per_node) {
    const std::int64_t per_node = std::min(layout.tensor_parallel, gpus_per_node);
    return {per_node, layout.tensor_parallel / per_node};
}

Group data_group(const Layout& layout, std::int64_t gpus_per_node) {
    const std::int64_t copies = std::max<std::int64_t>(gpus_per_node / layout.tensor_parallel, 1);
    const std::int64_t per_node = std::gcd(layout.data_parallel, copies);
    return {per_node, layout.data_parallel / per_node};
}

double bubble_share(std::int64_t stages, std::int64_t chunks, std::int64_t micro_batches) {
    return static_cast<double>(stages - 1) / static_cast<double>(chunks * micro_batches);
}

StepTime predict_step(const Hardware& hardware, const Shares& shares, const StepPlan& plan) {
    validate(plan, hardware.gpus_per_node);
    const Layout& l = plan.layout;
    const Network network = network_of(hardware, shares);
    const AttentionKernel kernel = plan.software.attention;
    const auto cost = [&](const std::vector<Op>& ops, bool backward) {
        return seconds_of(hardware, shares, kernel, ops, backward);
    };
    const Seconds forward = cost(layer_forward(plan), false);
    const Seconds backward = cost(layer_backward(plan), true);
    const Seconds again = cost(layer_again(plan), false);
    Seconds head = cost(head_forward(plan), false);
    head += cost(head_backward(plan), true);

    const TensorSums sums(hardware, network, plan);
    Sent layer_sent = sums.forward(forward.products);
    const Sent back_sent = sums.backward(backward.products),
               again_sent = sums.again(again.products);
    const double layer_forward_seconds = forward.total() + layer_sent.exposed;
    const double layer_backward_seconds =
        backward.total() + again.total() + back_sent.exposed + again_sent.exposed;
    layer_sent += back_sent;
    layer_sent += again_sent;

    const auto [layers, has_head] = longest_stage(plan.model.num_layers, l.pipeline_parallel,
                                                  layer_forward_seconds + layer_backward_seconds,
                                                  head.total() + sums.ends().exposed);
    const auto m = static_cast<double>(l.micro_batches());
    const double head_count = has_head ? 1.0 : 0.0;

    StepTime step;
    Seconds all = forward;
    all += backward;
    all = all * layers;
    all += head * head_count;
    step.products = m * all.products;
    step.attention = m * all.attention;
    step.memory = m * all.memory;
    step.again = m * layers * again.total();
    const Sent ends = sums.ends();
    step.tensor = m * (layers * layer_sent.exposed + head_count * ends.exposed);
    step.tensor_hidden = m * layers * layer_sent.hidden;

    if (l.pipeline_parallel > 1) {
        const double bytes = kActivationBytes * static_cast<double>(l.micro_batch * l.seq_len) *
                             static_cast<double>(plan.model.width) /
                             static_cast<double>(l.tensor_parallel);
        const double one = network.between.latency + bytes / network.between.bandwidth;
        const double sent = m * 2.0 * static_cast<double>(l.pipeline_chunks) * one;
        (plan.software.overlap_pipeline ? step.pipeline_hidden : step.pipeline) = sent;
    }
    const double through =
        step.products + step.attention + step.memory + step.again + step.tensor + step.pipeline;
    step.bubble = through * bubble_share(l.pipeline_parallel, l.pipeline_chunks, l.micro_batches());

    const double parameters = static_cast<double>(parameter_count(plan.model)) /
                              static_cast<double>(l.tensor_parallel * l.pipeline_parallel);
    const Sent data =
        data_messages(hardware, network, plan, parameters, layers * layer_forward_seconds,
                      layers * layer_backward_seconds);
    step.data = data.exposed;
    step.data_hidden = data.hidden;
    step.optimizer = optimizer_seconds(hardware, shares, plan, parameters);
    step.overlap = shares.overlap * (step.tensor_hidden + step.data_hidden + step.pipeline_hidden);
    return step;
}

double utilisation(const Hardware& hardware, const StepPlan& plan, double step_seconds) {
    const double flops = flops_per_token(plan.model, plan.layout.seq_len) * plan.layout.tokens();
    const double peak = hardware.peak_teraflops * 1e12 * static_cast<double>(plan.layout.gpus());
    return flops / (peak * step_seconds);
}

}  // namespace evenkeel::scaling
