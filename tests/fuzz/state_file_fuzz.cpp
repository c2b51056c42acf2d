// State files. The checksum would reject nearly every mutation, so the target corrects it and thereby reaches the parser.
#include <cstring>
#include <vector>

#include "based/core/hash.h"
#include "based/core/state_file.h"
#include "tests/fuzz/fuzz.h"

namespace based {

void fuzz_one(std::span<const std::byte> input) {
  accept_or_refuse([&] { parse_state_file(input, "fuzz.state"); });

  constexpr size_t size_at = 16, checksum_size = 16;
  if (input.size() < size_at + sizeof(uint64_t) + checksum_size) return;
  std::vector<std::byte> mended(input.begin(), input.end());
  const uint64_t size = mended.size();
  std::memcpy(mended.data() + size_at, &size, sizeof(size));
  const Hash128 hash = xxh3_128(std::span(mended).first(mended.size() - checksum_size));
  std::memcpy(mended.data() + mended.size() - 16, &hash.low, sizeof(hash.low));
  std::memcpy(mended.data() + mended.size() - 8, &hash.high, sizeof(hash.high));
  accept_or_refuse([&] { parse_state_file(mended, "fuzz.state"); });
}

}  // namespace based
