#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "framework/storage/checkpoint.h"
#include "framework/storage/sharded_source.h"
#include "tests/framework/storage/safetensors_files.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

using testing::entry;
using testing::file_of;
using testing::gaussian;
using testing::little_endian;
using testing::SafetensorsTest;
using testing::same_bits;

// ---- Reading ---------------------------------------------------------------------------------------

TEST_F(SafetensorsTest, ReadsBackWhatWasWritten) {
    const Tensor a = gaussian({3, 5, 7}, DType::kFloat32, 1);
    const Tensor b = gaussian({4, 3}, DType::kBFloat16, 2);
    const Tensor c = Tensor::full({5}, 42.0f, DType::kInt32);
    const Tensor scalar = Tensor::full({}, 2.5f, DType::kFloat32);
    const Tensor empty = Tensor::zeros({0, 3}, DType::kBFloat16);
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"b", b}, {"scalar", scalar}, {"empty", empty}, {"a", a}, {"c", c}},
                      {{"format", "pt"}, {"note", "a \"quoted\"\nline"}});
    const SafetensorsReader reader(path);
    EXPECT_TRUE(same_bits(reader.read("a"), a));
    EXPECT_TRUE(same_bits(reader.read("b"), b));
    EXPECT_TRUE(same_bits(reader.read("c"), c));
    EXPECT_TRUE(same_bits(reader.read("scalar"), scalar));
    EXPECT_EQ(reader.read("empty").shape(), (Shape{0, 3}));
    EXPECT_EQ(reader.metadata().at("note"), "a \"quoted\"\nline");
    EXPECT_EQ(reader.tensors().front().name, "b");
    EXPECT_TRUE(reader.contains("a"));
    EXPECT_FALSE(reader.contains("d"));
    try {
        reader.info("d");
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kIo);
        EXPECT_FAULT(std::string(e.what()), "has no tensor d among its 5");
    }
}

TEST_F(SafetensorsTest, SlicesAnyDimension) {
    const Tensor whole = gaussian({4, 6, 5}, DType::kFloat32, 3);
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"pad", gaussian({3}, DType::kBFloat16, 4)}, {"a", whole}});
    const SafetensorsReader reader(path);
    for (int dim = 0; dim < 3; ++dim) {
        for (std::int64_t begin = 0; begin <= whole.size(dim); ++begin) {
            for (std::int64_t end = begin; end <= whole.size(dim); ++end) {
                const Tensor want = whole.slice(dim, begin, end).clone();
                for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
                    const Tensor got = testing::poisoned(want.shape(), dtype);
                    reader.read_slice("a", dim, begin, end, got);
                    EXPECT_TRUE(same_bits(got, want.to(dtype)))
                        << "dim " << dim << ", " << begin << " to " << end;
                }
            }
        }
    }
}

TEST_F(SafetensorsTest, ConvertsLargeTensorsPieceByPiece) {
    const Tensor wide = gaussian({2, 70001}, DType::kFloat32, 5);
    const Tensor narrow = wide.to(DType::kBFloat16);
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"odd", narrow.slice(1, 0, 1)}, {"wide", wide}, {"narrow", narrow}});
    const SafetensorsReader reader(path);
    const Tensor got_narrow = testing::poisoned({2, 70001}, DType::kBFloat16);
    reader.read("wide", got_narrow);
    EXPECT_TRUE(same_bits(got_narrow, narrow));
    const Tensor got_wide = testing::poisoned({2, 70001}, DType::kFloat32);
    reader.read("narrow", got_wide);
    EXPECT_TRUE(same_bits(got_wide, narrow.to(DType::kFloat32)));
}

TEST_F(SafetensorsTest, ConvertsEveryHalf) {
    std::string data;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        data += static_cast<char>(bits);
        data += static_cast<char>(bits >> 8);
    }
    const std::string header = "{" + entry("a", "F16", "65536", "0,131072") + "}";
    const std::string path = write(little_endian(header.size()) + header + data);
    const Tensor got = SafetensorsReader(path).read("a");
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
        double want =
            exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
        if (exponent == 31) want = mantissa == 0 ? INFINITY : NAN;
        if ((bits & 0x8000u) != 0) want = -want;
        const float value = got.data<float>()[bits];
        ASSERT_TRUE(std::isnan(want) ? std::isnan(value) : value == want)
            << "bits " << bits << ": got " << value << ", want " << want;
        ASSERT_EQ(std::signbit(value), std::signbit(want)) << "bits " << bits;
    }
}

TEST_F(SafetensorsTest, HalvesAreKeptWhereTheyAreAskedFor) {
    const Tensor halves = testing::gaussian({5, 7}, DType::kFloat16, 1);
    const std::string path = directory_.file("halves");
    write_safetensors(path, {{"a", halves}, {"wide", halves.to(DType::kFloat32)}}, {});
    const SafetensorsReader reader(path);
    const Tensor got = testing::poisoned({5, 7}, DType::kFloat16);
    reader.read("a", got);
    EXPECT_TRUE(same_bits(got, halves));
    EXPECT_TRUE(same_bits(reader.read("a"), halves.to(DType::kFloat32)));
    EXPECT_THROW(reader.read("wide", got), Error) << "fp32 is not cut to fp16";
}

TEST_F(SafetensorsTest, ConvertsDoubles) {
    const double values[] = {0.1, -1e300, 3.0};
    const std::string header = "{" + entry("a", "F64", "3", "0,24") + "}";
    const std::string path =
        write(little_endian(header.size()) + header +
              std::string(reinterpret_cast<const char*>(values), sizeof(values)));
    const Tensor got = SafetensorsReader(path).read("a");
    EXPECT_EQ(got.data<float>()[0], 0.1f);
    EXPECT_EQ(got.data<float>()[1], -INFINITY);
    EXPECT_EQ(got.data<float>()[2], 3.0f);
    const Tensor doubles = Tensor::zeros({3}, DType::kFloat64);
    SafetensorsReader(path).read("a", doubles);
    EXPECT_EQ(doubles.data<double>()[1], -1e300);
}

TEST_F(SafetensorsTest, ReadsRunsOfElementsWhateverTheShapes) {
    const Tensor a = testing::gaussian({5, 7}, DType::kFloat32, 1);
    const std::string path = directory_.file("runs");
    write_safetensors(path, {{"before", a}, {"a", a}}, {});
    const SafetensorsReader reader(path);
    const Tensor got = testing::poisoned({2, 3}, DType::kFloat32);
    reader.read_elements("a", 4, got);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(got.data<float>()[i], a.data<float>()[4 + i]) << i;
    reader.read_elements("a", 35, Tensor::zeros({0}, DType::kFloat32));
    EXPECT_THROW(reader.read_elements("a", 30, got), Error);
    EXPECT_THROW(reader.read_elements("a", -1, got), Error);
}

TEST_F(SafetensorsTest, IsASourceOfNamedTensors) {
    const Tensor a = testing::gaussian({5, 7}, DType::kBFloat16, 1);
    const std::string path = directory_.file("source");
    write_safetensors(path, {{"a", a}, {"b", a.to(DType::kFloat32)}}, {{"model", "{}"}});
    const ShardedSource source(path, {path});
    EXPECT_EQ(source.origin(), path);
    EXPECT_EQ(source.model(), "{}");
    EXPECT_EQ(source.names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_TRUE(source.contains("b"));
    EXPECT_FALSE(source.contains("c"));
    EXPECT_EQ(source.shape("a"), (Shape{5, 7}));
    EXPECT_EQ(source.dtype("a"), DType::kBFloat16);
    EXPECT_EQ(source.dtype("b"), DType::kFloat32);
    const Tensor got = testing::poisoned({5, 2}, DType::kBFloat16);
    source.read_slice("a", 1, 3, 5, got);
    EXPECT_TRUE(same_bits(got, a.slice(1, 3, 5).contiguous()));
    EXPECT_THROW(source.shape("c"), Error);
}

TEST_F(SafetensorsTest, RefusesTypesThatDoNotConvert) {
    const std::string header = "{" + entry("i64", "I64", "1", "0,8") + "," +
                               entry("i32", "I32", "1", "8,12") + "," +
                               entry("f32", "F32", "1", "12,16") + "}";
    const std::string path = write(file_of(header, 16));
    const SafetensorsReader reader(path);
    const auto fault_of = [&](const std::string& name, DType dtype) -> std::string {
        try {
            reader.read(name, Tensor::zeros({1}, dtype));
        } catch (const Error& e) {
            EXPECT_EQ(e.code(), ErrorCode::kIo);
            return e.what();
        }
        return "";
    };
    EXPECT_FAULT(fault_of("i64", DType::kFloat32), "i64 is I64, which does not convert to fp32");
    EXPECT_FAULT(fault_of("i64", DType::kInt32), "does not convert to int32");
    EXPECT_FAULT(fault_of("i32", DType::kFloat32), "does not convert to fp32");
    EXPECT_FAULT(fault_of("f32", DType::kInt32), "does not convert to int32");
    EXPECT_EQ(fault_of("i32", DType::kInt32), "");
}

TEST_F(SafetensorsTest, RejectsSlicesAndOutputsThatDoNotFit) {
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"a", gaussian({4, 6}, DType::kFloat32, 1)}});
    const SafetensorsReader reader(path);
    const Tensor out = Tensor::zeros({2, 6}, DType::kFloat32);
    EXPECT_NO_THROW(reader.read_slice("a", 0, 2, 4, out));
    EXPECT_THROW(reader.read_slice("a", 0, 3, 5, out), Error);
    EXPECT_THROW(reader.read_slice("a", 0, -1, 1, out), Error);
    EXPECT_THROW(reader.read_slice("a", 0, 1, 2, out), Error);
    EXPECT_THROW(reader.read_slice("a", 2, 0, 1, out), Error);
    EXPECT_THROW(reader.read_slice("a", -1, 0, 1, out), Error);
    EXPECT_THROW(reader.read("a", out), Error);
    const Tensor strided = Tensor::zeros({4, 12}, DType::kFloat32).slice(1, 0, 6);
    EXPECT_THROW(reader.read("a", strided), Error);
}

TEST_F(SafetensorsTest, NoticesAFileThatShrinksWhileOpen) {
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"a", gaussian({64}, DType::kFloat32, 1)}});
    const SafetensorsReader reader(path);
    ASSERT_EQ(::truncate(path.c_str(), 100), 0);
    try {
        reader.read("a");
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kIo);
        EXPECT_FAULT(std::string(e.what()), "a.safetensors: ends at byte 100");
    }
}

// ---- Writing ---------------------------------------------------------------------------------------

TEST_F(SafetensorsTest, WritesExactlyTheseBytes) {
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"x", Tensor::full({2}, 1.0f, DType::kBFloat16)}}, {{"k", "v"}});
    std::string header = R"({"__metadata__":{"k":"v"},)"
                         R"("x":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})";
    header.append((8 - header.size() % 8) % 8, ' ');
    EXPECT_EQ(read_file(path), little_endian(header.size()) + header + "\x80\x3f\x80\x3f");
}

TEST_F(SafetensorsTest, WriterTakesStridedTensors) {
    const Tensor strided = gaussian({4, 6}, DType::kFloat32, 1).slice(1, 2, 5);
    const std::string path = directory_.file("a.safetensors");
    write_safetensors(path, {{"a", strided}});
    EXPECT_TRUE(same_bits(SafetensorsReader(path).read("a"), strided.clone()));
}

TEST_F(SafetensorsTest, WriterRefusesWhatReadersWould) {
    const std::string path = directory_.file("a.safetensors");
    const Tensor a = Tensor::zeros({1}, DType::kFloat32);
    const auto code_of = [&](const std::vector<std::pair<std::string, Tensor>>& tensors,
                             const SafetensorsMetadata& metadata = {}) {
        try {
            write_safetensors(path, tensors, metadata);
        } catch (const Error& e) {
            return e.code();
        }
        return ErrorCode::kInternal;
    };
    EXPECT_EQ(code_of({{"a", a}, {"a", a}}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of({{"__metadata__", a}}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of({{"a\n", a}}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of({{"\xff", a}}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of({{"a", a}}, {{"k", "\xff"}}), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of({{"a", Tensor::zeros(Shape(9, 1), DType::kFloat32)}}),
              ErrorCode::kInvalidArgument);
}

TEST_F(SafetensorsTest, WriterWantsTheDeclaredTensorsInOrder) {
    const std::string path = directory_.file("a.safetensors");
    const Tensor a = Tensor::zeros({2}, DType::kFloat32);
    SafetensorsWriter writer(path, {{"a", DType::kFloat32, {2}}, {"b", DType::kBFloat16, {3}}}, {});
    EXPECT_THROW(writer.write("b", Tensor::zeros({3}, DType::kBFloat16)), Error);
    EXPECT_THROW(writer.write("a", Tensor::zeros({3}, DType::kFloat32)), Error);
    EXPECT_THROW(writer.write("a", Tensor::zeros({2}, DType::kBFloat16)), Error);
    writer.write("a", a);
    EXPECT_THROW(writer.finish(), Error);
    EXPECT_THROW(SafetensorsReader{path}, Error) << "an unfinished file must not be valid";
    writer.write("b", Tensor::zeros({3}, DType::kBFloat16));
    EXPECT_THROW(writer.write("c", a), Error);
    writer.finish();
    EXPECT_NO_THROW(SafetensorsReader{path});
}

TEST_F(SafetensorsTest, AFullDiskSaysSo) {
    if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "needs /dev/full";
    try {
        write_safetensors("/dev/full", {{"a", Tensor::zeros({4}, DType::kFloat32)}});
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kIo);
        EXPECT_FAULT(std::string(e.what()), "/dev/full: cannot write: No space left on device");
    }
}

TEST_F(SafetensorsTest, WritingWhereNothingCanBeCreatedSaysSo) {
    try {
        write_safetensors("/nonexistent/a.safetensors", {});
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kIo);
        EXPECT_FAULT(std::string(e.what()), "/nonexistent/a.safetensors: cannot create: No such");
    }
}

}  // namespace
}  // namespace evenkeel
