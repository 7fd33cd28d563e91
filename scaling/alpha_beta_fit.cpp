#include "scaling/alpha_beta_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace evenkeel::scaling {
namespace {

// Unknowns: c, and alpha and 1/b of the link in a node and of that between nodes.
constexpr int kUnknowns = 5;
using Vector = std::array<double, kUnknowns>;
constexpr int kCollective = 0, kNodeLatency = 1, kNodeInverse = 2, kBetweenLatency = 3,
              kBetweenInverse = 4;

// One point: its forms, each divided by the measured time, so that a form times the unknowns is predicted / measured.
struct Row {
    std::vector<Vector> forms;
    int chosen = 0;
    double weight = 1.0;
};

double dot(const Vector& a, const Vector& b) {
    double sum = 0.0;
    for (int i = 0; i < kUnknowns; ++i) sum += a[i] * b[i];
    return sum;
}

// Coefficients of alpha and 1/b are what the model's own functions say of alpha = 1 alone, and of 1/b = 1 alone.
template <typename Seconds>
Vector form_of(const Group& group, bool with_collective, double measured, Seconds seconds) {
    const bool between = group.nodes > 1;
    Vector form{};
    form[kCollective] = with_collective ? 1.0 / measured : 0.0;
    form[between ? kBetweenLatency : kNodeLatency] =
        seconds(Link{1.0, std::numeric_limits<double>::infinity()}) / measured;
    form[between ? kBetweenInverse : kNodeInverse] = seconds(Link{0.0, 1.0}) / measured;
    return form;
}

Row row_of(const TimedCollective& point, bool with_collective) {
    const std::int64_t p = point.group.size();
    const double n = point.bytes;
    const auto form = [&](auto seconds) {
        return form_of(point.group, with_collective, point.seconds, seconds);
    };
    Row row;
    switch (point.operation) {
        case Operation::kAllReduce:
            row.forms = {form([&](const Link& l) { return ring_all_reduce_seconds(l, p, n); }),
                         form([&](const Link& l) { return tree_all_reduce_seconds(l, p, n); })};
            break;
        case Operation::kReduceScatter:
        case Operation::kAllGather:
            row.forms = {form([&](const Link& l) { return ring_half_seconds(l, p, n); })};
            break;
        case Operation::kBroadcast:
            row.forms = {form([&](const Link& l) { return chain_broadcast_seconds(l, p, n); })};
            break;
    }
    return row;
}

const Vector& form(const Row& row) { return row.forms[static_cast<std::size_t>(row.chosen)]; }

// The weighted least squares over the unknowns in `set`; nothing if they can't be told apart or one is below 0.
std::optional<Vector> solve(const std::vector<Row>& rows, unsigned set) {
    std::vector<int> unknowns;
    for (int i = 0; i < kUnknowns; ++i) {
        if (set >> i & 1u) unknowns.push_back(i);
    }
    const std::size_t n = unknowns.size();
    // Columns are scaled to length 1: seconds and seconds a byte differ by many orders.
    std::vector<double> length(n, 0.0);
    std::vector<std::vector<double>> a(n, std::vector<double>(n + 1, 0.0));
    for (std::size_t i = 0; i < n; ++i) {
        for (const Row& row : rows) {
            const double x = form(row)[unknowns[i]];
            length[i] += row.weight * x * x;
        }
        if (length[i] == 0.0) return std::nullopt;
        length[i] = std::sqrt(length[i]);
    }
    for (const Row& row : rows) {
        for (std::size_t i = 0; i < n; ++i) {
            const double x = row.weight * form(row)[unknowns[i]] / length[i];
            for (std::size_t j = 0; j < n; ++j) a[i][j] += x * form(row)[unknowns[j]] / length[j];
            a[i][n] += x;
        }
    }
    constexpr double kSingular = 1e-9;
    for (std::size_t k = 0; k < n; ++k) {  // Cholesky's order: a positive matrix needs no pivots
        if (a[k][k] < kSingular) return std::nullopt;
        for (std::size_t i = k + 1; i < n; ++i) {
            const double factor = a[i][k] / a[k][k];
            for (std::size_t j = k; j <= n; ++j) a[i][j] -= factor * a[k][j];
        }
    }
    Vector x{};
    for (std::size_t k = n; k-- > 0;) {
        double value = a[k][n];
        for (std::size_t j = k + 1; j < n; ++j) value -= a[k][j] * x[unknowns[j]] * length[j];
        value /= a[k][k] * length[k];
        if (value < 0.0) return std::nullopt;
        x[unknowns[k]] = value;
    }
    return x;
}

double squares(const std::vector<Row>& rows, const Vector& x) {
    double sum = 0.0;
    for (const Row& row : rows) {
        const double error = dot(form(row), x) - 1.0;
        sum += row.weight * error * error;
    }
    return sum;
}

// The best of all sets of unknowns: with so few this is the least squares with none below 0. Sets without c come first
// and stay unless another is truly better.
std::optional<Vector> solve(const std::vector<Row>& rows) {
    std::optional<Vector> best;
    double least = std::numeric_limits<double>::infinity();
    for (const unsigned with_collective : {0u, 1u}) {
        for (unsigned set = (1u << kUnknowns) - 2; set > 0; set -= 2) {
            const std::optional<Vector> x = solve(rows, set | with_collective);
            if (!x) continue;
            const double sum = squares(rows, *x);
            if (sum < least * (1.0 - 1e-6)) least = sum, best = x;
        }
    }
    return best;
}

std::vector<double> errors_of(const std::vector<Row>& rows, const Vector& x) {
    std::vector<double> errors;
    for (const Row& row : rows) errors.push_back(std::abs(dot(form(row), x) - 1.0));
    return errors;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2.0;
}

// Least absolute errors, then Tukey's biweight. Errors here are of the larger of predicted and measured, so that a point
// that is ten times too short pulls no harder than one that is ten times too long.
std::optional<Vector> robust(std::vector<Row>& rows) {
    constexpr int kRounds = 50;
    constexpr double kFloor = 1e-4;                     // errors below are as good as none
    constexpr double kTukey = 4.685, kNormal = 1.4826;  // 95 % efficient, and the scale of a normal
    for (Row& row : rows) row.weight = 1.0;
    std::optional<Vector> x = solve(rows);
    std::vector<double> errors(rows.size());
    for (int round = 0; x && round < 2 * kRounds; ++round) {
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const double ratio = dot(form(rows[i]), *x), larger = std::max(ratio, 1.0);
            errors[i] = std::abs(ratio - 1.0) / larger;
            rows[i].weight = 1.0 / (larger * larger);
        }
        const double reach = kTukey * kNormal * std::max(median(errors), kFloor);
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const double share = errors[i] / reach;
            const double biweight = share < 1.0 ? std::pow(1.0 - share * share, 2) : 0.0;
            rows[i].weight *= round < kRounds ? 1.0 / std::max(errors[i], kFloor) : biweight;
        }
        x = solve(rows);
    }
    return x;
}

// Forms that are fastest under x; whether any changed.
bool choose(std::vector<Row>& rows, const Vector& x) {
    bool changed = false;
    for (Row& row : rows) {
        int fastest = row.chosen;
        for (int f = 0; f < static_cast<int>(row.forms.size()); ++f) {
            const auto at = [&](int i) { return dot(row.forms[static_cast<std::size_t>(i)], x); };
            if (at(f) < at(fastest)) fastest = f;
        }
        changed |= fastest != row.chosen;
        row.chosen = fastest;
    }
    return changed;
}

struct Solution {
    Vector x{};
    double error = 0.0;
    std::int64_t left_out = 0;
};

std::optional<Solution> fit(std::span<const TimedCollective> points, bool with_collective) {
    constexpr std::size_t kLeast = 3;
    constexpr int kTurns = 20;  // forms may go to and fro: the best turn counts
    std::vector<Row> rows;
    for (const TimedCollective& point : points) rows.push_back(row_of(point, with_collective));
    if (rows.size() < kLeast) return std::nullopt;
    std::optional<Solution> best;
    for (int turn = 0; turn < kTurns; ++turn) {
        const std::optional<Vector> x = robust(rows);
        if (!x) break;
        const std::int64_t left_out =
            std::count_if(rows.begin(), rows.end(), [](const Row& r) { return r.weight == 0.0; });
        const bool changed = choose(rows, *x);
        const double error = median(errors_of(rows, *x));
        if (!best || error < best->error) best = {*x, error, left_out};
        if (!changed) break;
    }
    return best;
}

Link link_of(const Vector& x, int latency, int inverse) {
    return {x[latency],
            x[inverse] > 0.0 ? 1.0 / x[inverse] : std::numeric_limits<double>::infinity()};
}

}  // namespace

const char* name_of(Operation operation) {
    static constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather",
                                             "broadcast"};
    return kNames[static_cast<int>(operation)];
}

double collective_seconds(const Network& network,
                          Operation operation,
                          const Group& group,
                          double bytes) {
    switch (operation) {
        case Operation::kAllReduce:
            return all_reduce_seconds(network, group, bytes);
        case Operation::kReduceScatter:
        case Operation::kAllGather:
            return half_seconds(network, group, bytes);
        case Operation::kBroadcast:
            return broadcast_seconds(network, group, bytes);
    }
    return 0.0;
}

std::optional<AlphaBeta> fit_link(std::span<const TimedCollective> points) {
    std::vector<TimedCollective> near(points.begin(), points.end());
    for (TimedCollective& point : near) point.group = {point.group.size(), 1};
    const std::optional<Solution> solution = fit(near, false);
    if (!solution || solution->x[kNodeInverse] == 0.0) return std::nullopt;
    return AlphaBeta{link_of(solution->x, kNodeLatency, kNodeInverse), solution->error,
                     solution->left_out};
}

double predicted_seconds(const AlphaBeta& fit,
                         Operation operation,
                         const Group& group,
                         double bytes) {
    return collective_seconds({fit.link, fit.link, 0.0}, operation, {group.size(), 1}, bytes);
}

std::optional<NetworkFit> fit_network(std::span<const TimedCollective> points) {
    std::vector<TimedCollective> used;
    for (const TimedCollective& point : points) {
        const bool one_link = point.group.nodes == 1 || point.group.per_node == 1;
        if (one_link && point.operation != Operation::kBroadcast) used.push_back(point);
    }
    // Times of one size do not tell latency from bandwidth.
    const auto is_first_size = [&](const TimedCollective& p) { return p.bytes == used[0].bytes; };
    if (std::all_of(used.begin(), used.end(), is_first_size)) return std::nullopt;
    const std::optional<Solution> solution = fit(used, true);
    if (!solution) return std::nullopt;
    NetworkFit result;
    result.network = {link_of(solution->x, kNodeLatency, kNodeInverse),
                      link_of(solution->x, kBetweenLatency, kBetweenInverse),
                      solution->x[kCollective]};
    result.error = solution->error;
    result.points = static_cast<std::int64_t>(used.size());
    result.left_out = solution->left_out;
    return result;
}

}  // namespace evenkeel::scaling
