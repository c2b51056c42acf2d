#include "based/core/hash.h"

#include <gtest/gtest.h>

#include <string_view>

#include "based/core/files.h"
#include "temporary_folder.h"

namespace based {
namespace hash_test {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// XXH3 of the empty input, from the algorithm's specification.
TEST(Hash, KnownAnswers) {
  EXPECT_EQ(xxh3_64({}), 0x2d06800538d394c2u);
  EXPECT_EQ(xxh3_128({}).hex(), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, PiecesEqualTheWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 7);
  for (const size_t cut : {0u, 1u, 16u, 240u, 241u, 1024u, 4999u, 5000u}) {
    Hasher128 hasher;
    hasher.update(bytes_of(text).first(cut));
    hasher.update(bytes_of(text).subspan(cut));
    EXPECT_EQ(hasher.digest(), xxh3_128(bytes_of(text))) << cut;
  }
}

TEST(Hash, OneFlippedBitChangesIt) {
  std::string text(1000, 'x');
  const Hash128 before = xxh3_128(bytes_of(text));
  for (size_t i = 0; i < text.size(); i += 37) {
    text[i] ^= 4;
    EXPECT_NE(xxh3_128(bytes_of(text)), before);
    text[i] ^= 4;
  }
}

TEST(Hash, OfAFile) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("a"), "content");
  EXPECT_EQ(xxh3_128_file(folder.file("a")), xxh3_128(bytes_of("content")));
  EXPECT_THROW(xxh3_128_file(folder.file("b")), Error);
}

}  // namespace hash_test
}  // namespace based
