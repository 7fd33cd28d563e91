#include "framework/training/heat_map.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "framework/error.h"

namespace evenkeel {
namespace {

std::uint32_t number_at(const std::string& bytes, std::size_t at) {
    std::uint32_t number = 0;
    for (std::size_t i = 0; i < 4; ++i) {
        number = number << 8 | static_cast<unsigned char>(bytes[at + i]);
    }
    return number;
}

// The data of the one chunk of that type, its place found by the lengths before it.
std::string chunk_of(const std::string& png, const std::string& type) {
    for (std::size_t at = 8; at + 12 <= png.size();) {
        const std::size_t length = number_at(png, at);
        if (png.substr(at + 4, 4) == type) return png.substr(at + 8, length);
        at += 12 + length;
    }
    ADD_FAILURE() << "no chunk " << type;
    return "";
}

// What is in the one stored block of a small picture.
std::string lines_of(const std::string& png) {
    const std::string stream = chunk_of(png, "IDAT");
    EXPECT_EQ(stream.substr(0, 3), std::string("\x78\x01\x01"))
        << "zlib's header, the last block, stored";
    const std::size_t length =
        static_cast<unsigned char>(stream[3]) + 256u * static_cast<unsigned char>(stream[4]);
    EXPECT_EQ(stream.size(), 2 + 5 + length + 4);
    return stream.substr(7, length);
}

int red_of(const std::string& png, char color) {
    return static_cast<unsigned char>(chunk_of(png, "PLTE")[3 * static_cast<unsigned char>(color)]);
}

TEST(HeatMapTest, ThePictureHasAPixelACell) {
    const std::string png =
        heat_map_png({"t", 2, 3, {0.0f, 1.0f, 2.0f, 1.5f, 2.0f, 0.0f}}, 0.0f, 2.0f);
    EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
    const std::string header = chunk_of(png, "IHDR");
    EXPECT_EQ(number_at(header, 0), 3u) << "width";
    EXPECT_EQ(number_at(header, 4), 2u) << "height";
    EXPECT_EQ(lines_of(png), std::string("\x00\x00\x7f\xfe\x00\xbf\xfe\x00", 8));
    EXPECT_EQ(chunk_of(png, "PLTE").size(), 3u * 256u);
}

TEST(HeatMapTest, ChecksumsAreThoseOfTheStandards) {
    const std::string png = heat_map_png({"t", 1, 1, {0.0f}}, 0.0f, 1.0f);
    // Known of every PNG: its last chunk.
    EXPECT_EQ(png.substr(png.size() - 12), std::string("\0\0\0\0IEND\xae\x42\x60\x82", 12));
    // Two zeros: a = 1, b = 2.
    const std::string stream = chunk_of(png, "IDAT");
    EXPECT_EQ(number_at(stream, stream.size() - 4), 0x00020001u);
}

TEST(HeatMapTest, WhatIsNoNumberIsGreyAndWhatIsBeyondHasTheEndsColour) {
    const std::string png =
        heat_map_png({"t", 1, 5, {NAN, INFINITY, -9.0f, 9.0f, 1.0f}}, 1.0f, 3.0f);
    const std::string lines = lines_of(png);
    EXPECT_EQ(lines, std::string("\x00\xff\xff\x00\xfe\x00", 6));
    EXPECT_EQ(red_of(png, '\xff'), 190);
    EXPECT_EQ(red_of(png, '\x00'), 58);
    EXPECT_EQ(red_of(png, '\xfe'), 250);
}

TEST(HeatMapTest, OneNumberEverywhereHasTheColourOfTheLowEnd) {
    EXPECT_EQ(lines_of(heat_map_png({"t", 1, 2, {7.0f, 7.0f}}, 7.0f, 7.0f)),
              std::string("\0\0\0", 3));
}

TEST(HeatMapTest, LargeTablesTakeMoreThanOneBlock) {
    const std::string png =
        heat_map_png({"t", 300, 300, std::vector<float>(90000, 1.0f)}, 0.0f, 1.0f);
    const std::string stream = chunk_of(png, "IDAT");
    EXPECT_EQ(stream.size(), 2u + 2u * 5u + 300u * 301u + 4u);
    EXPECT_EQ(stream[2], '\0') << "not the last block";
    EXPECT_EQ(stream[2 + 5 + 65535], '\1') << "the last block";
}

TEST(HeatMapTest, ATableWithoutCellsIsRefused) {
    EXPECT_THROW(heat_map_png({"t", 0, 4, {}}, 0.0f, 1.0f), Error);
}

}  // namespace
}  // namespace evenkeel
