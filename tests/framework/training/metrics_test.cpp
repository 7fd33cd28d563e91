#include "framework/training/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "framework/error.h"
#include "framework/storage/checkpoint.h"
#include "framework/training/heat_map.h"
#include "framework/training/tensorboard.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

using testing::TemporaryDirectory;

MetricRecord record_of(std::int64_t step) {
    MetricRecord record;
    record.step = step;
    record.scalars = {{"loss", 2.5 / static_cast<double>(step + 1)}, {"lr", 0.003}};
    record.tables = {{"max_logit", 2, 3, {1.5f, -2.0f, 0.1f, 4.0f, 5.0f, 6.0f}}};
    return record;
}

std::string message_of(const std::function<void()>& action, ErrorCode want) {
    try {
        action();
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), want) << e.what();
        return e.what();
    }
    return "no error";
}

#define EXPECT_FAULT(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// ---- JSON lines ------------------------------------------------------------------------------------

TEST(MetricsTest, ARecordIsOneLineInOrder) {
    MetricRecord record = record_of(3);
    record.scalars.emplace_back("tokens_per_second", 1e6);
    EXPECT_EQ(to_json_line(record),
              R"({"step":3,"loss":0.625,"lr":0.003,"tokens_per_second":1e+06,)"
              R"("max_logit":[[1.5,-2,0.1],[4,5,6]]})");
}

TEST(MetricsTest, RecordsReadBackExactly) {
    const TemporaryDirectory directory;
    MetricRecord record;
    record.step = 9007199254740993;
    record.scalars = {{"third", 1.0 / 3.0}, {"nan", NAN},     {"inf", INFINITY},
                      {"minus", -INFINITY}, {"tiny", 5e-324}, {"a \"quoted\" name", -0.0}};
    record.tables = {
        {"t", 2, 2, {0.1f, NAN, -INFINITY, 3.4e38f}}, {"none", 0, 0, {}}, {"narrow", 3, 0, {}}};
    write_file_atomically(directory.file("m"), to_json_line(record) + "\n");
    const std::vector<MetricRecord> records = read_metrics(directory.file("m"));
    ASSERT_EQ(records.size(), 1u);
    const MetricRecord& got = records[0];
    EXPECT_EQ(got.step, record.step);
    ASSERT_EQ(got.scalars.size(), record.scalars.size());
    for (std::size_t i = 0; i < got.scalars.size(); ++i) {
        EXPECT_EQ(got.scalars[i].first, record.scalars[i].first);
        const double a = got.scalars[i].second, b = record.scalars[i].second;
        EXPECT_TRUE(std::memcmp(&a, &b, sizeof(a)) == 0 || (std::isnan(a) && std::isnan(b)))
            << got.scalars[i].first << ": got " << a << ", want " << b;
    }
    ASSERT_EQ(got.tables.size(), 3u);
    EXPECT_EQ(got.tables[0].rows, 2);
    EXPECT_EQ(got.tables[0].columns, 2);
    EXPECT_EQ(got.tables[0].values[0], 0.1f);
    EXPECT_TRUE(std::isnan(got.tables[0].values[1]));
    EXPECT_EQ(got.tables[0].values[2], -INFINITY);
    EXPECT_EQ(got.tables[0].values[3], 3.4e38f);
    EXPECT_EQ(got.tables[2].rows, 3);
}

TEST(MetricsTest, RejectsRecordsThatContradictThemselves) {
    MetricRecord twice = record_of(1);
    twice.scalars.emplace_back("loss", 1.0);
    EXPECT_FAULT(message_of([&] { to_json_line(twice); }, ErrorCode::kInvalidArgument),
                 "loss twice");
    MetricRecord step = record_of(1);
    step.scalars.emplace_back("step", 1.0);
    EXPECT_FAULT(message_of([&] { to_json_line(step); }, ErrorCode::kInvalidArgument),
                 "step twice");
    MetricRecord size = record_of(1);
    size.tables[0].values.pop_back();
    EXPECT_FAULT(message_of([&] { to_json_line(size); }, ErrorCode::kInvalidArgument),
                 "max_logit: got 5 values, want 2 x 3");
}

TEST(MetricsTest, ReadingNamesFileAndLine) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("m");
    for (const char* line : {"{", "[]", "{}", "3", R"({"step":"x"})", R"({"step":1,"loss":"x"})",
                             R"({"step":1,"t":[[1],[1,2]]})", R"({"step":1,"t":[1]})",
                             R"({"step":1,"loss":null})", "\xff", ""}) {
        write_file_atomically(
            path, R"({"step":0})" + std::string("\n") + line + "\n" + R"({"step":2})" + "\n");
        EXPECT_FAULT(message_of([&] { read_metrics(path); }, ErrorCode::kIo), path + ":2: ");
    }
    EXPECT_FAULT(message_of([] { read_metrics("/nonexistent"); }, ErrorCode::kIo), "/nonexistent");
}

TEST(MetricsTest, WritesEveryRecordAtOnce) {
    const TemporaryDirectory directory;
    MetricWriter writer(directory.path());
    for (std::int64_t step = 0; step < 3; ++step) {
        writer.write(record_of(step));
        const auto records = read_metrics(directory.file("metrics.jsonl"));
        ASSERT_EQ(records.size(), static_cast<std::size_t>(step + 1));
        EXPECT_EQ(records.back().step, step);
    }
}

TEST(MetricsTest, ResumeDropsLaterRecordsAndATornLine) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("metrics.jsonl");
    {
        MetricWriter writer(directory.path());
        for (std::int64_t step = 1; step <= 5; ++step) writer.write(record_of(step));
    }
    const std::string whole = read_file(path);
    std::ofstream(path, std::ios::app) << R"({"step":6,"lo)";
    {
        MetricWriter writer(directory.path(), 4);
        writer.write(record_of(4));
        writer.write(record_of(5));
    }
    EXPECT_EQ(read_file(path), whole) << "as if it had never stopped";
    MetricWriter(directory.path(), 0);
    EXPECT_EQ(read_file(path), "");
}

TEST(MetricsTest, ResumeDropsLinesThatAreNoRecordsAndKeepsTheFile) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("metrics.jsonl");
    std::string text;
    for (std::int64_t step = 0; step < 4; ++step) text += to_json_line(record_of(step)) + "\n";
    for (int time = 0; time < 2; ++time) {
        std::string damaged = text;
        damaged[damaged.find('\n') + 3] = '\x80';  // in the second line
        write_file_atomically(path, damaged);
        ::testing::internal::CaptureStderr();
        MetricWriter(directory.path(), 3).write(record_of(3));
        const std::string said = ::testing::internal::GetCapturedStderr();
        const std::string kept = time == 0 ? "metrics.damaged.jsonl" : "metrics.damaged.2.jsonl";
        EXPECT_FAULT(said, "metrics.jsonl:2: not a record");
        EXPECT_FAULT(said, "kept as " + directory.file(kept));
        EXPECT_EQ(read_file(directory.file(kept)), damaged);
        const std::vector<MetricRecord> records = read_metrics(path);
        ASSERT_EQ(records.size(), 3u);
        EXPECT_EQ(records[1].step, 2);
        EXPECT_EQ(records[2].step, 3);
    }
}

// A limit on the size of files stands for a full disk.
TEST(MetricsTest, WhatCouldNotBeWrittenWholeIsCutOff) {
    const TemporaryDirectory directory;
    MetricWriter writer(directory.path());
    writer.write(record_of(0));
    const std::string before = read_file(directory.file("metrics.jsonl"));
    rlimit limit;
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
    const rlimit little = {before.size() + 20, limit.rlim_max};
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
    EXPECT_FAULT(message_of([&] { writer.write(record_of(1)); }, ErrorCode::kIo),
                 "metrics.jsonl: cannot write");
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, handler);
    EXPECT_EQ(read_file(directory.file("metrics.jsonl")), before);
    writer.write(record_of(2));
    EXPECT_EQ(read_metrics(directory.file("metrics.jsonl")).size(), 2u);
}

TEST(MetricsTest, ALastLineOfGarbageIsDroppedWithAWarningThatNamesIt) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("metrics.jsonl");
    MetricWriter(directory.path()).write(record_of(1));
    const std::string whole = read_file(path);
    for (const std::string& garbage :
         {std::string("{\"step\":2,\"lo"), std::string("{\"step\":2,\n"), std::string(7, '\0'),
          std::string("\0\0\n", 3)}) {
        std::ofstream(path, std::ios::binary) << whole << garbage;
        ::testing::internal::CaptureStderr();
        MetricWriter(directory.path(), 2).write(record_of(2));
        const std::string said = ::testing::internal::GetCapturedStderr();
        EXPECT_NE(said.find(path + ":2"), std::string::npos) << said;
        EXPECT_EQ(read_metrics(path).size(), 2u);
    }
}

TEST(MetricsTest, ResumeWithoutAnEarlierFileStartsOne) {
    const TemporaryDirectory directory;
    MetricWriter writer(directory.path(), 7);
    writer.write(record_of(7));
    EXPECT_EQ(read_metrics(directory.file("metrics.jsonl")).size(), 1u);
}

TEST(MetricsTest, AMissingDirectoryIsAnIoError) {
    EXPECT_FAULT(message_of([] { MetricWriter("/nonexistent"); }, ErrorCode::kIo), "/nonexistent/");
    EXPECT_FAULT(message_of([] { MetricWriter("/nonexistent", 3); }, ErrorCode::kIo),
                 "/nonexistent/");
}

// ---- TensorBoard -----------------------------------------------------------------------------------

TEST(TensorboardTest, Crc32cMatchesPublishedVectors) {
    EXPECT_EQ(crc32c(""), 0u);
    EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
    // RFC 3720, appendix B.4.
    EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
    EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
    std::string rising(32, '\0'), falling(32, '\0');
    for (int i = 0; i < 32; ++i) rising[i] = static_cast<char>(i);
    for (int i = 0; i < 32; ++i) falling[i] = static_cast<char>(31 - i);
    EXPECT_EQ(crc32c(rising), 0x46dd794eu);
    EXPECT_EQ(crc32c(falling), 0x113fdb5cu);
}

std::string hex(const std::string& bytes) {
    std::string text;
    for (unsigned char c : bytes) {
        text += "0123456789abcdef"[c >> 4];
        text += "0123456789abcdef"[c & 15];
    }
    return text;
}

TEST(TensorboardTest, FramesCarryMaskedChecksums) {
    const std::string record = tfrecord("abc");
    ASSERT_EQ(record.size(), 8u + 4u + 3u + 4u);
    EXPECT_EQ(hex(record.substr(0, 8)), "0300000000000000");
    EXPECT_EQ(record.substr(12, 3), "abc");
    const auto masked_at = [&](std::size_t at) {
        std::uint32_t value;
        std::memcpy(&value, record.data() + at, 4);
        return value;
    };
    const auto mask = [](std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; };
    EXPECT_EQ(masked_at(8), mask(crc32c(record.substr(0, 8))));
    EXPECT_EQ(masked_at(15), mask(crc32c("abc")));
}

TEST(TensorboardTest, EventsByHand) {
    // wall_time 1.0: field 1, 64 bits. file_version: field 3, 13 bytes.
    EXPECT_EQ(hex(version_event(1.0)),
              "09000000000000f03f"
              "1a0d" +
                  hex("brain.Event:2"));
    // step 300: field 2, varint ac 02. session_log: field 7 {status: field 1 = 1}.
    EXPECT_EQ(hex(restart_event(1.0, 300)),
              "09000000000000f03f"
              "10ac02"
              "3a020801");
    // summary: field 5 {value: field 1 {tag: field 1, simple_value: field 2, 32 bits}}.
    EXPECT_EQ(hex(scalars_event(1.0, 0, {{"a", 1.0f}, {"b", -2.0f}})),
              "09000000000000f03f"
              "1000"
              "2a14"
              "0a08"
              "0a0161"
              "150000803f"
              "0a08"
              "0a0162"
              "15000000c0");
}

TEST(TensorboardTest, PicturesByHand) {
    // value {tag, image: field 4 {height: 1, width: 2, colour space: 3 = RGB, file: 4}}.
    EXPECT_EQ(hex(images_event(1.0, 0, {{"a", 2, 5, "png"}})),
              "09000000000000f03f"
              "1000"
              "2a12"
              "0a10"
              "0a0161"
              "220b"
              "0805"
              "1002"
              "1803"
              "2203" +
                  hex("png"));
}

// The tags and values of an event file, read by an independent walk over its bytes.
std::vector<std::pair<std::string, float>> read_events(const std::string& path) {
    const std::string bytes = read_file(path);
    std::vector<std::pair<std::string, float>> scalars;
    std::size_t at = 0;
    while (at < bytes.size()) {
        std::uint64_t length = 0;
        std::memcpy(&length, bytes.data() + at, 8);
        const std::string payload = bytes.substr(at + 12, length);
        at += 16 + length;
        for (std::size_t i = 0; (i = payload.find('\x0a', i)) != std::string::npos; ++i) {
            // value { tag { n bytes } simple_value }, n + 7 long
            if (i + 3 >= payload.size() || payload[i + 2] != '\x0a') continue;
            const auto n = static_cast<std::size_t>(payload[i + 3]);
            if (static_cast<std::size_t>(payload[i + 1]) != n + 7) continue;
            float value = 0.0f;
            std::memcpy(&value, payload.data() + i + 4 + n + 1, 4);
            scalars.emplace_back(payload.substr(i + 4, n), value);
        }
    }
    EXPECT_EQ(at, bytes.size());
    return scalars;
}

TEST(MetricsTest, AlarmsAreReadAsTheyWereWritten) {
    MetricRecord record = record_of(7);
    AlarmEvent event;
    event.alarm = "hot";
    event.metric = "max_logit";
    event.row = 1, event.column = 2;
    event.value = std::numeric_limits<double>::infinity();
    event.threshold = 100.0;
    event.since = 5, event.count = 2, event.of = 6;
    event.action = AlarmAction::kCheckpoint;
    event.text = "a \"line\"";
    record.alarms = {event, {}};
    const TemporaryDirectory directory;
    write_file_atomically(directory.file("m"), to_json_line(record) + "\n");
    const auto read = read_metrics(directory.file("m"));
    ASSERT_EQ(read.size(), 1u);
    EXPECT_EQ(read[0].tables.size(), record.tables.size());
    ASSERT_EQ(read[0].alarms.size(), 2u);
    const AlarmEvent& got = read[0].alarms[0];
    EXPECT_EQ(got.alarm, event.alarm);
    EXPECT_EQ(got.metric, event.metric);
    EXPECT_TRUE(got.raised);
    EXPECT_EQ(got.row, 1);
    EXPECT_EQ(got.column, 2);
    EXPECT_EQ(got.value, event.value);
    EXPECT_EQ(got.threshold, 100.0);
    EXPECT_EQ(got.since, 5);
    EXPECT_EQ(got.count, 2);
    EXPECT_EQ(got.of, 6);
    EXPECT_EQ(got.action, AlarmAction::kCheckpoint);
    EXPECT_EQ(got.text, event.text);
    EXPECT_EQ(read[0].alarms[1].row, -1);
    EXPECT_EQ(to_json_line(read[0]), to_json_line(record));
}

TEST(TensorboardTest, EventFilesHoldScalarsAndTheTablesRows) {
    const TemporaryDirectory directory;
    MetricWriter(directory.path()).write(record_of(1));
    std::string path;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
        if (entry.path().filename().string().rfind("events.out.tfevents.", 0) == 0) {
            EXPECT_EQ(path, "");
            path = entry.path().string();
        }
    }
    const std::vector<std::pair<std::string, float>> want = {
        {"loss", 1.25f},
        {"lr", 0.003f},
        {"max_logit_max/layer_0", 1.5f},
        {"max_logit_min/layer_0", -2.0f},
        {"max_logit_mean/layer_0", static_cast<float>((1.5 - 2.0 + 0.1f) / 3.0)},
        {"max_logit_max/layer_1", 6.0f},
        {"max_logit_min/layer_1", 4.0f},
        {"max_logit_mean/layer_1", 5.0f}};
    EXPECT_EQ(read_events(path), want);
    const std::string bytes = read_file(path);
    EXPECT_FAULT(bytes, "heads/max_logit");
    EXPECT_FAULT(bytes, heat_map_png(record_of(1).tables[0], -2.0f, 6.0f));
}

TEST(TensorboardTest, ColoursOfPicturesKeepTheRangeOfWhatCameBefore) {
    const TemporaryDirectory directory;
    MetricWriter writer(directory.path());
    MetricRecord hot = record_of(1), cold = record_of(2);
    hot.tables[0].values = {NAN, 100.0f, 1.0f, 1.0f, 1.0f, 1.0f};
    cold.tables[0].values = {INFINITY, 2.0f, 1.0f, 1.0f, 1.0f, 1.0f};
    writer.write(hot);
    writer.write(cold);
    for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
        if (entry.path().extension() == ".jsonl") continue;
        EXPECT_FAULT(read_file(entry.path().string()), heat_map_png(cold.tables[0], 1.0f, 100.0f));
    }
}

}  // namespace
}  // namespace evenkeel
