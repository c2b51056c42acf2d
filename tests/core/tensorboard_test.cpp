#include "based/core/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string_view>

namespace based {
namespace tensorboard_test {

uint32_t crc_of(std::string_view text) { return crc32c(std::as_bytes(std::span(text))); }

TEST(Tensorboard, TheChecksumIsTheKnownOne) {
  EXPECT_EQ(crc_of(""), 0u);
  EXPECT_EQ(crc_of("123456789"), 0xe3069283u);            // the check value of CRC-32C
  EXPECT_EQ(crc_of(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc_of(std::string(32, '\xff')), 0x62a8ab43u);
}

template <class T>
T number_at(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

uint32_t unmask(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8u;
  return rotated >> 17 | rotated << 15;
}

// The bytes that TensorBoard's own protocol buffer library writes for this event.
TEST(Tensorboard, AScalarIsEncodedAsTheLibraryDoes) {
  const std::string record = tensorboard_scalars(1.5, 300, {{"train/loss", 0.25}, {"b", -1}});
  const std::string message(
      "\x09\0\0\0\0\0\0\xf8\x3f\x10\xac\x02\x2a\x1d\x0a\x11\x0a\x0atrain/loss\x15\0\0\x80\x3e\x0a\x08\x0a\x01"
      "b\x15\0\0\x80\xbf",
      43);
  ASSERT_EQ(record.size(), 8 + 4 + message.size() + 4);
  EXPECT_EQ(number_at<uint64_t>(record, 0), message.size());
  EXPECT_EQ(unmask(number_at<uint32_t>(record, 8)), crc_of(record.substr(0, 8)));
  EXPECT_EQ(record.substr(12, message.size()), message);
  EXPECT_EQ(unmask(number_at<uint32_t>(record, 12 + message.size())), crc_of(message));
}

TEST(Tensorboard, AFileBeginsWithItsVersion) {
  const std::string record = tensorboard_start(2);
  EXPECT_EQ(record.substr(12, record.size() - 16), std::string("\x09\0\0\0\0\0\0\0\x40\x1a\x0d"
                                                               "brain.Event:2",
                                                               24));
}

}  // namespace tensorboard_test
}  // namespace based
