// Event files that TensorBoard reads: records of protocol buffers, each with its length and masked CRC-32C checksums. Encoded by hand,
// since three small messages are all that is needed. Append the bytes to a file whose name holds "tfevents".
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace based {

uint32_t crc32c(std::span<const std::byte> bytes);  // Castagnoli, as iSCSI has it

// `wall_time`: seconds since 1970.
std::string tensorboard_start(double wall_time);  // the first record of a file
std::string tensorboard_scalars(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& tags);

}  // namespace based
