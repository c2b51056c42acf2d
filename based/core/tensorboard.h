// Event files for TensorBoard: records of protocol buffers, each with its length and masked CRC-32C checksums. They are encoded by hand,
// since only three small messages are needed. Append the returned bytes to a file whose name contains "tfevents".
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace based {

uint32_t crc32c(std::span<const std::byte> bytes);  // Castagnoli's polynomial, as in iSCSI

// `wall_time` is in seconds since 1970.
std::string tensorboard_start(double wall_time);  // the first record of a file
std::string tensorboard_scalars(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& tags);

}  // namespace based
