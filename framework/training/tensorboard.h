// TensorBoard event files: TFRecord framing around hand-encoded protocol buffers. Field numbers are
// those of tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace evenkeel {

// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
std::uint32_t crc32c(std::string_view bytes);

// Length, masked checksum of the length, payload, masked checksum of the payload.
std::string tfrecord(std::string_view payload);

// Event messages.
std::string version_event(double wall_time);
// Everything logged before for this step and later is void.
std::string restart_event(double wall_time, std::int64_t step);
std::string scalars_event(double wall_time,
                          std::int64_t step,
                          const std::vector<std::pair<std::string, float>>& scalars);
struct PngImage {
    std::string name;
    std::int64_t width = 0, height = 0;  // pixels
    std::string png;                     // the file, in colour
};
std::string images_event(double wall_time, std::int64_t step, const std::vector<PngImage>& images);

}  // namespace evenkeel
