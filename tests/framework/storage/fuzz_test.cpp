// Valid files with a few bytes changed, the same changes in every run: a reader may refuse them with its own
// error and nothing else.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "framework/config.h"
#include "framework/error.h"
#include "framework/optimizer/adamw.h"
#include "framework/optimizer/schedule.h"
#include "framework/rng.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/safetensors.h"
#include "framework/training/metrics.h"
#include "tests/support/data.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

class Mutator {
  public:
    explicit Mutator(std::string_view name) : rng_(1, purpose(name)) {}

    // One to four changes, of which most keep the file nearly valid.
    std::string mutate(std::string bytes) {
        const std::uint64_t changes = 1 + below(4);
        for (std::uint64_t i = 0; i < changes && !bytes.empty(); ++i) change(bytes);
        return bytes;
    }

  private:
    std::uint64_t below(std::uint64_t bound) { return rng_.below(next_++, bound); }

    void change(std::string& bytes) {
        static constexpr std::string_view kPieces[] = {"0",
                                                       "-1",
                                                       "18446744073709551615",
                                                       "4294967296",
                                                       "1e9",
                                                       "null",
                                                       "true",
                                                       "{",
                                                       "}",
                                                       "[",
                                                       "]",
                                                       ",",
                                                       "\"",
                                                       "\\u0000",
                                                       "\xff",
                                                       "\"shape\":[3]"};
        const std::uint64_t at = below(bytes.size());
        const std::string_view piece = kPieces[below(std::size(kPieces))];
        switch (below(8)) {
            case 0:
                bytes[at] = static_cast<char>(bytes[at] ^ (1u << below(8)));
                break;
            case 1:
                bytes[at] = static_cast<char>(below(256));
                break;
            case 2:
                bytes.resize(at);
                break;
            case 3:
                bytes.erase(at, 1 + below(8));
                break;
            case 4:
                bytes = bytes.substr(0, at) + std::string(piece) + bytes.substr(at);
                break;
            case 5:  // part of it again
                bytes += bytes.substr(at, 1 + below(64));
                break;
            case 6: {  // digits are sizes and offsets
                const std::size_t digit = bytes.find_first_of("0123456789", at);
                if (digit != std::string::npos) bytes[digit] = static_cast<char>('0' + below(10));
                break;
            }
            case 7:  // the header's length, where there is one
                bytes[at % std::min<std::size_t>(bytes.size(), 8)] = static_cast<char>(below(256));
                break;
        }
    }

    CounterRng rng_;
    std::uint64_t next_ = 0;
};

// Some file systems flush a file that is truncated and written again; a new one costs nothing.
void write_anew(const std::string& path, const std::string& bytes) {
    std::remove(path.c_str());
    std::ofstream(path, std::ios::binary) << bytes;
}

TEST(FuzzTest, SafetensorsAreReadOrRefused) {
    const testing::TemporaryDirectory directory;
    const std::string path = directory.file("a.safetensors");
    write_safetensors(path,
                      {{"a", testing::gaussian({2, 3}, DType::kFloat32, 1)},
                       {"b", testing::gaussian({5}, DType::kBFloat16, 2)},
                       {"empty", Tensor::zeros({0, 7}, DType::kFloat32)},
                       {"c", Tensor::full({4, 1}, 3.0f, DType::kInt32)}},
                      {{"format", "pt"}});
    const std::string valid = read_file(path);
    const std::size_t data_bytes = 6 * 4 + 5 * 2 + 4 * 4;
    Mutator mutator("safetensors");
    int accepted = 0;
    for (int i = 0; i < 8000; ++i) {
        std::string bytes = mutator.mutate(valid);
        // Half of them with a length that fits, so that the header itself is reached.
        if (i % 2 == 0 && bytes.size() > 8 + data_bytes) {
            const std::uint64_t length = bytes.size() - 8 - data_bytes;
            std::memcpy(bytes.data(), &length, 8);
        }
        write_anew(path, bytes);
        try {
            const SafetensorsReader reader(path);
            ++accepted;
            for (const TensorInfo& tensor : reader.tensors()) {
                ASSERT_LE(tensor.begin, tensor.end);
                ASSERT_LE(tensor.end, bytes.size());
                reader.read(tensor.name);
            }
        } catch (const Error& e) {
            ASSERT_EQ(e.code(), ErrorCode::kIo) << "mutation " << i << ": " << e.what();
        }
    }
    // Changes of data bytes alone must pass, or nothing but the first check was tested.
    EXPECT_GT(accepted, 100);
    EXPECT_LT(accepted, 4000);
}

TEST(FuzzTest, ConfigurationsAreReadOrRefused) {
    struct Root {
        AdamWConfig optimizer;
        ScheduleConfig schedule;
        VisitFields visit() {
            return [this](ConfigVisitor& v) {
                v.section("optimizer", optimizer, "");
                v.section("schedule", schedule, "");
            };
        }
    };
    Root defaults;
    const std::string valid = to_json(defaults.visit());
    Mutator mutator("config");
    int accepted = 0;
    for (int i = 0; i < 8000; ++i) {
        Root root;
        try {
            parse_config(root.visit(), mutator.mutate(valid), "a.json");
            ++accepted;
        } catch (const Error& e) {
            ASSERT_EQ(e.code(), ErrorCode::kConfig) << "mutation " << i << ": " << e.what();
        }
    }
    EXPECT_GT(accepted, 100);
}

TEST(FuzzTest, MetricsAreReadOrRefused) {
    const testing::TemporaryDirectory directory;
    const std::string path = directory.file("metrics.jsonl");
    std::string valid;
    for (std::int64_t step = 0; step < 3; ++step) {
        MetricRecord record;
        record.step = step;
        record.scalars = {{"loss", 1.5}, {"lr", 1e-3}};
        record.tables = {{"max_logit", 2, 2, {1.0f, 2.0f, 3.0f, 4.0f}}};
        valid += to_json_line(record) + "\n";
    }
    Mutator mutator("metrics");
    int accepted = 0;
    for (int i = 0; i < 4000; ++i) {
        write_anew(path, mutator.mutate(valid));
        try {
            read_metrics(path);
            ++accepted;
        } catch (const Error& e) {
            ASSERT_EQ(e.code(), ErrorCode::kIo) << "mutation " << i << ": " << e.what();
        }
    }
    EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace evenkeel
