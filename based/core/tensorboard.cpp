#include "based/core/tensorboard.h"

#include <array>
#include <bit>
#include <string_view>

namespace based {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82f63b78u : 0u);
    table[byte] = value;
  }
  return table;
}

void append_little_endian(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

// A protocol buffer message. A field is encoded as its number and wire type, followed by a varint (type 0), 8 bytes (1), length and bytes
// (2) or 4 bytes (5).
class Message {
 public:
  Message& varint(int field, uint64_t value) {
    key(field, 0);
    append_varint(value);
    return *this;
  }
  Message& real(int field, double value) {
    key(field, 1);
    append_little_endian(bytes_, std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  Message& real(int field, float value) {
    key(field, 5);
    append_little_endian(bytes_, std::bit_cast<uint32_t>(value), 4);
    return *this;
  }
  Message& text(int field, std::string_view value) {
    key(field, 2);
    append_varint(value.size());
    bytes_ += value;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, int wire_type) { append_varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type)); }
  void append_varint(uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  return std::rotr(crc, 15) + 0xa282ead8u;
}

std::string record(const Message& message) {
  std::string out;
  append_little_endian(out, message.bytes().size(), 8);
  append_little_endian(out, masked_crc(out), 4);
  out += message.bytes();
  append_little_endian(out, masked_crc(message.bytes()), 4);
  return out;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) {
  static constexpr std::array<uint32_t, 256> table = make_table();
  uint32_t crc = ~0u;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<uint32_t>(byte)) & 255];
  return ~crc;
}

// Event {1: wall_time double, 2: step int64, 3: file_version string, 5: Summary {1: repeated Value {1: tag, 2: simple_value float}}}
std::string tensorboard_start(double wall_time) { return record(Message().real(1, wall_time).text(3, "brain.Event:2")); }

std::string tensorboard_scalars(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& tags) {
  Message summary;
  for (const auto& [tag, value] : tags) summary.text(1, Message().text(1, tag).real(2, static_cast<float>(value)).bytes());
  return record(Message().real(1, wall_time).varint(2, static_cast<uint64_t>(step)).text(5, summary.bytes()));
}

}  // namespace based
