#include "attention/retrofit/calibration.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "framework/rng.h"
#include "framework/thread_errors.h"

namespace evenkeel {
namespace {

constexpr const char* kOp = "calibration";
// Below this, starting threads costs more than it saves.
constexpr std::int64_t kParallelNumbers = 1 << 18;

// Sequences that a sample keeps, of T tokens each.
std::int64_t most_sequences(std::int64_t T, const CalibrationOptions& options) {
    return std::max<std::int64_t>(2, options.max_tokens / T);
}

// The `count` tokens of smallest key, ascending: fewer are always a part of more.
std::vector<std::int64_t> choose_rows(std::int64_t T,
                                      std::int64_t index,
                                      std::int64_t count,
                                      std::uint64_t seed) {
    const CounterRng rng(seed, purpose("calibration rows"));
    std::vector<std::pair<std::uint64_t, std::int64_t>> keys;
    for (std::int64_t t = 0; t < T; ++t) {
        keys.emplace_back(rng.bits(static_cast<std::uint64_t>(index * T + t)), t);
    }
    std::nth_element(keys.begin(), keys.begin() + (count - 1), keys.end());
    std::vector<std::int64_t> rows;
    for (std::int64_t r = 0; r < count; ++r) {
        rows.push_back(keys[static_cast<std::size_t>(r)].second);
    }
    std::sort(rows.begin(), rows.end());
    return rows;
}

// The sequence with these of its rows alone.
CalibrationSequence thinned(const CalibrationSequence& sequence,
                            const std::vector<std::int64_t>& rows) {
    CalibrationSequence result{sequence.index, sequence.positions, sequence.documents, rows, {},
                               sequence.k};
    const std::size_t floats = sequence.q.size() / sequence.rows.size();
    for (std::int64_t row : rows) {
        const auto at = std::lower_bound(sequence.rows.begin(), sequence.rows.end(), row);
        const auto from =
            sequence.q.begin() + (at - sequence.rows.begin()) * static_cast<std::ptrdiff_t>(floats);
        result.q.insert(result.q.end(), from, from + static_cast<std::ptrdiff_t>(floats));
    }
    return result;
}

void check_options(const CalibrationOptions& options) {
    EVENKEEL_CHECK(std::isfinite(options.eps) && options.eps >= 0.0, kOp, "eps: got ", options.eps,
                   ", want 0 or more");
    EVENKEEL_CHECK(options.max_tokens > 0 && options.max_rows > 0, kOp, "sample: got at most ",
                   options.max_tokens, " tokens and ", options.max_rows, " rows, want 1 or more");
    EVENKEEL_CHECK(options.held_out > 0.0 && options.held_out < 1.0, kOp, "held_out: got ",
                   options.held_out, ", want a share between 0 and 1");
}

void check_rows(const char* name, const Tensor& rows, const Shape& want) {
    check_shape(kOp, name, rows, want);
    EVENKEEL_CHECK(rows.device() == Device::kCpu, kOp, name, ": got ", name_of(rows.device()),
                   ", want cpu");
    EVENKEEL_CHECK(rows.dtype() == DType::kFloat32 || rows.dtype() == DType::kBFloat16, kOp, name,
                   ": got ", name_of(rows.dtype()), ", want fp32 or bf16");
    EVENKEEL_CHECK(rows.size(3) <= 1 || rows.stride(3) == 1, kOp, name, ": got stride ",
                   rows.stride(3), " between channels, want 1");
}

void check_documents(const std::vector<std::int32_t>& documents, std::int64_t B, std::int64_t T) {
    if (documents.empty()) return;
    EVENKEEL_CHECK(B == 1, kOp, "documents: got them for ", B, " sequences, want one sequence");
    EVENKEEL_CHECK(documents.size() >= 2 && documents.front() == 0 && documents.back() == T &&
                       std::is_sorted(documents.begin(), documents.end()),
                   kOp, "documents: want ascending boundaries from 0 to the ", T, " tokens");
}

template <typename T>
float read(const T* from, std::int64_t c) {
    return static_cast<float>(from[c]);
}

// Copies row [b, t, n, :] of `rows` to floats.
template <typename T>
void copy_row(
    const Tensor& rows, std::int64_t b, std::int64_t t, std::int64_t n, std::vector<float>& to) {
    const T* from = rows.data<T>() + b * rows.stride(0) + t * rows.stride(1) + n * rows.stride(2);
    for (std::int64_t c = 0; c < rows.size(3); ++c) to[static_cast<std::size_t>(c)] = read(from, c);
}

void load_row(
    const Tensor& rows, std::int64_t b, std::int64_t t, std::int64_t n, std::vector<float>& to) {
    if (rows.dtype() == DType::kFloat32) {
        copy_row<float>(rows, b, t, n, to);
    } else {
        copy_row<bfloat16>(rows, b, t, n, to);
    }
}

// Adds the rms of a head's rows, in order of tokens; returns the first token (of B T) that is not finite, or -1.
std::int64_t add_rms(const Tensor& rows, std::int64_t head, double eps, RunningMoments& moments) {
    const std::int64_t T = rows.size(1), D = rows.size(3);
    std::vector<float> row(static_cast<std::size_t>(D));
    for (std::int64_t token = 0; token < rows.size(0) * T; ++token) {
        load_row(rows, token / T, token % T, head, row);
        double sum = 0.0;
        for (float x : row) sum += static_cast<double>(x) * static_cast<double>(x);
        if (!std::isfinite(sum)) return token;
        moments.add(std::sqrt(sum / static_cast<double>(D) + eps));
    }
    return -1;
}

void add_all_rms(const char* name,
                 const Tensor& rows,
                 std::int64_t first_sequence,
                 double eps,
                 std::vector<RunningMoments>& moments) {
    const auto heads = static_cast<std::int64_t>(moments.size());
    std::vector<std::int64_t> bad(moments.size(), -1);
    ThreadErrors errors;
#pragma omp parallel for schedule(static) if (rows.numel() >= kParallelNumbers)
    for (std::int64_t head = 0; head < heads; ++head) {
        errors.keep([&] {
            const auto h = static_cast<std::size_t>(head);
            bad[h] = add_rms(rows, head, eps, moments[h]);
        });
    }
    errors.rethrow();
    for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t token = bad[static_cast<std::size_t>(head)];
        EVENKEEL_CHECK_CODE(token < 0, ErrorCode::kNonFinite, kOp, name,
                            ": got NaN or infinity in head ", head, ", token ",
                            token % rows.size(1), " of sequence ",
                            first_sequence + token / rows.size(1), ", want finite numbers");
    }
}

std::vector<float> gather(const Tensor& rows,
                          std::int64_t b,
                          const std::vector<std::int64_t>& tokens) {
    const std::int64_t N = rows.size(2), D = rows.size(3);
    std::vector<float> all(tokens.size() * static_cast<std::size_t>(N * D));
    std::vector<float> row(static_cast<std::size_t>(D));
    auto to = all.begin();
    for (std::int64_t token : tokens) {
        for (std::int64_t n = 0; n < N; ++n, to += D) {
            load_row(rows, b, token, n, row);
            std::copy(row.begin(), row.end(), to);
        }
    }
    return all;
}

std::size_t bytes_of(const CalibrationSequence& sequence) {
    return (sequence.q.size() + sequence.k.size()) * sizeof(float) +
           sequence.rows.size() * sizeof(std::int64_t) +
           (sequence.positions.size() + sequence.documents.size()) * sizeof(std::int32_t);
}

}  // namespace

void RunningMoments::add(double value) {
    ++count_;
    const double before = value - mean_;
    mean_ += before / static_cast<double>(count_);
    squares_ += before * (value - mean_);
}

double RunningMoments::deviation() const {
    return count_ == 0 ? 0.0 : std::sqrt(squares_ / static_cast<double>(count_));
}

double RunningMoments::variation() const { return mean_ == 0.0 ? 0.0 : deviation() / mean_; }

HeadCalibration::HeadCalibration(const AttentionConfig& config,
                                 std::int64_t heads,
                                 std::int64_t kv_heads,
                                 const CalibrationOptions& options,
                                 const Tensor& sink)
    : config_(config),
      options_(options),
      heads_(heads),
      kv_heads_(kv_heads),
      q_rms_(static_cast<std::size_t>(std::max<std::int64_t>(heads, 0))),
      k_rms_(static_cast<std::size_t>(std::max<std::int64_t>(kv_heads, 0))) {
    check_options(options);
    EVENKEEL_CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, kOp, "heads: got ", heads,
                   " of queries and ", kv_heads, " of keys, want a multiple");
    EVENKEEL_CHECK_CODE(config.qk_norm.kind == QkNormKind::kNone, ErrorCode::kConfig, kOp,
                        "qk_norm: got a layer that has one, want kind none: its gains are trained");
    EVENKEEL_CHECK_CODE(config.softcap == 0.0, ErrorCode::kConfig, kOp, "softcap: got ",
                        config.softcap,
                        ", want 0: capped logits are not linear in gains, and are bounded already");
    const bool learned = config.sink == AttentionConfig::Sink::kLearned;
    EVENKEEL_CHECK(learned == sink.defined(), kOp, "sink: got ", sink.defined() ? "one" : "none",
                   " for a layer with", learned ? "" : "out", " learned sinks");
    const double no_sink = config.sink == AttentionConfig::Sink::kOffByOne
                               ? 0.0
                               : -std::numeric_limits<double>::infinity();
    const auto count = static_cast<std::size_t>(heads);
    sinks_.assign(count, no_sink);
    if (learned) {
        check_shape(kOp, "sink", sink, {heads});
        const Tensor values = sink.to(Device::kCpu).contiguous();
        for (std::size_t h = 0; h < count; ++h) {
            sinks_[h] = static_cast<double>(values.data<float>()[h]);
            EVENKEEL_CHECK_CODE(std::isfinite(sinks_[h]), ErrorCode::kNonFinite, kOp, "sink: got ",
                                sinks_[h], " for head ", h, ", want a finite number");
        }
    }
    max_logit_.assign(count, -std::numeric_limits<double>::infinity());
    entropy_.assign(count, std::numeric_limits<double>::quiet_NaN());
}

void HeadCalibration::update(const Tensor& q,
                             const Tensor& k,
                             const Tensor& positions,
                             const std::vector<std::int32_t>& documents) {
    EVENKEEL_CHECK(q.defined() && q.rank() == 4, kOp, "q: got ",
                   q.defined() ? to_string(q.shape()) : "no tensor", ", want [B, T, H/P, D]");
    const std::int64_t B = q.size(0), T = q.size(1), D = config_.head_dim;
    check_rows("q", q, {B, T, heads_, D});     // [B, T, H/P, D]
    check_rows("k", k, {B, T, kv_heads_, D});  // [B, T, K/P, D]
    EVENKEEL_CHECK(B > 0 && T > 0, kOp, "q: got ", to_string(q.shape()), ", want tokens");
    EVENKEEL_CHECK(length_ == 0 || length_ == T, kOp, "q: got sequences of ", T, " tokens, want ",
                   length_, " as before");
    if (positions.defined()) {
        check_shape(kOp, "positions", positions, {B, T});  // [B, T]
        check_dtype(kOp, "positions", positions, DType::kInt32);
        EVENKEEL_CHECK(positions.device() == Device::kCpu, kOp, "positions: want them on the cpu");
    }
    check_documents(documents, B, T);
    if (length_ == 0) rows_each_ = std::min(T, options_.max_rows);
    length_ = T;

    add_all_rms("q", q, sequences_, options_.eps, q_rms_);
    add_all_rms("k", k, sequences_, options_.eps, k_rms_);

    const CounterRng rng(options_.seed, purpose("calibration sequences"));
    const auto most = static_cast<std::size_t>(most_sequences(T, options_));
    for (std::int64_t b = 0; b < B; ++b, ++sequences_) {
        const std::uint64_t key = rng.bits(static_cast<std::uint64_t>(sequences_));
        if (kept_.size() == most && key > kept_.back().key) continue;
        CalibrationSequence sequence;
        sequence.index = sequences_;
        sequence.documents = documents;
        sequence.rows = choose_rows(T, sequences_, rows_each_, options_.seed);
        std::vector<std::int64_t> all(static_cast<std::size_t>(T));
        for (std::int64_t t = 0; t < T; ++t) {
            all[static_cast<std::size_t>(t)] = t;
            const auto position =
                positions.defined()
                    ? positions
                          .data<std::int32_t>()[b * positions.stride(0) + t * positions.stride(1)]
                    : static_cast<std::int32_t>(t);
            sequence.positions.push_back(position);
        }
        sequence.q = gather(q, b, sequence.rows);
        sequence.k = gather(k, b, all);
        const auto at =
            std::lower_bound(kept_.begin(), kept_.end(), key,
                             [](const Kept& a, std::uint64_t other) { return a.key < other; });
        kept_.insert(at,
                     Kept{key, std::make_shared<const CalibrationSequence>(std::move(sequence))});
        if (kept_.size() > most) kept_.pop_back();
        thin();
    }
    tokens_ += B * T;
}

void HeadCalibration::thin() {
    const auto count = static_cast<std::int64_t>(kept_.size());
    if (rows_each_ == 1 || count * rows_each_ <= options_.max_rows) return;
    while (rows_each_ > 1 && count * rows_each_ > options_.max_rows) {
        rows_each_ = (rows_each_ + 1) / 2;
    }
    for (Kept& kept : kept_) {
        const auto rows = choose_rows(length_, kept.sequence->index, rows_each_, options_.seed);
        kept.sequence = std::make_shared<const CalibrationSequence>(thinned(*kept.sequence, rows));
    }
}

void HeadCalibration::observe(const AttentionStats& stats, std::int64_t sequences) {
    EVENKEEL_CHECK(sequences > 0, kOp, "sequences: got ", sequences, ", want 1 or more");
    check_shape(kOp, "max_logit", stats.max_logit, {heads_});  // [H/P]
    check_shape(kOp, "entropy", stats.entropy, {heads_});      // [H/P]
    const Tensor max_logit = stats.max_logit.to(Device::kCpu);
    const Tensor entropy = stats.entropy.to(Device::kCpu);
    const double share =
        static_cast<double>(sequences) / static_cast<double>(observed_ + sequences);
    for (std::size_t h = 0; h < max_logit_.size(); ++h) {
        const auto largest = static_cast<double>(max_logit.data<float>()[h]);
        const auto mean = static_cast<double>(entropy.data<float>()[h]);
        EVENKEEL_CHECK_CODE(!std::isnan(largest) && std::isfinite(mean), ErrorCode::kNonFinite, kOp,
                            "telemetry: got NaN for head ", h, ", want numbers");
        max_logit_[h] = std::max(max_logit_[h], largest);
        entropy_[h] = observed_ == 0 ? mean : entropy_[h] + share * (mean - entropy_[h]);
    }
    observed_ += sequences;
}

const RunningMoments& HeadCalibration::q_rms(std::int64_t head) const {
    return q_rms_.at(static_cast<std::size_t>(head));
}
const RunningMoments& HeadCalibration::k_rms(std::int64_t kv_head) const {
    return k_rms_.at(static_cast<std::size_t>(kv_head));
}
double HeadCalibration::sink(std::int64_t head) const {
    return sinks_.at(static_cast<std::size_t>(head));
}
double HeadCalibration::observed_max_logit(std::int64_t head) const {
    return max_logit_.at(static_cast<std::size_t>(head));
}
double HeadCalibration::observed_entropy(std::int64_t head) const {
    return entropy_.at(static_cast<std::size_t>(head));
}

std::vector<SampledSequence> HeadCalibration::sample() const {
    std::vector<SampledSequence> sequences;
    for (const Kept& kept : kept_) sequences.push_back({kept.sequence, false});
    std::sort(sequences.begin(), sequences.end(),
              [](const auto& a, const auto& b) { return a.sequence->index < b.sequence->index; });
    // As many as the share says, spread evenly; one at least, and one at least to fit on.
    const auto count = static_cast<std::int64_t>(sequences.size());
    if (count < 2) return sequences;
    const std::int64_t held = std::clamp<std::int64_t>(
        std::llround(options_.held_out * static_cast<double>(count)), 1, count - 1);
    for (std::int64_t s = 0; s < count; ++s) {
        sequences[static_cast<std::size_t>(s)].held_out = (s + 1) * held / count > s * held / count;
    }
    return sequences;
}

std::size_t HeadCalibration::sample_bytes() const {
    std::size_t bytes = 0;
    for (const Kept& kept : kept_) bytes += bytes_of(*kept.sequence);
    return bytes;
}

std::size_t HeadCalibration::max_sample_bytes(std::int64_t heads,
                                              std::int64_t kv_heads,
                                              std::int64_t head_dim,
                                              std::int64_t sequence_length,
                                              const CalibrationOptions& options) {
    const std::int64_t sequences = most_sequences(sequence_length, options);
    const std::int64_t rows = std::max(options.max_rows, sequences);
    const std::int64_t tokens = sequences * sequence_length;
    return static_cast<std::size_t>((rows * heads + tokens * kv_heads) * head_dim) * sizeof(float) +
           static_cast<std::size_t>(rows) * sizeof(std::int64_t) +
           static_cast<std::size_t>(tokens) * sizeof(std::int32_t);
}

}  // namespace evenkeel
