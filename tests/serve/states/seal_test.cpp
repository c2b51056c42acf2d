#include "based/serve/states/seal.h"

#include <gtest/gtest.h>

#include <set>

#include "based/core/files.h"
#include "based/serve/protocol/api_error.h"
#include "based/serve/protocol/identifiers.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace seal_test {

int opening_status(const StateSeal& seal, const std::string& text, const std::string& owner = "a", const std::string& hash = "m") {
  try {
    seal.open(text, owner, hash, "input");
  } catch (const ApiError& error) {
    EXPECT_EQ(error.param(), "input");
    return error.status();
  }
  return 0;
}

TEST(Seal, OpensWhatItSealed) {
  const StateSeal seal;
  std::string file = "a file with\0a zero";
  file.resize(1000, 'x');
  for (const bool uploaded : {false, true}) {
    const StateSeal::Opened opened = seal.open(seal.seal({file, uploaded}, "a", "m"), "a", "m", "input");
    EXPECT_EQ(opened.file, file);
    EXPECT_EQ(opened.uploaded, uploaded);
  }
  EXPECT_NE(seal.seal({file}, "a", "m"), seal.seal({file}, "a", "m")) << "each has a nonce of its own";
}

TEST(Seal, RefusesOtherOwnersModelsKeysAndChangedTexts) {
  const StateSeal seal;
  const std::string text = seal.seal({"content"}, "a", "m");
  EXPECT_EQ(opening_status(seal, text), 0);
  EXPECT_EQ(opening_status(seal, text, "b"), 400);
  EXPECT_EQ(opening_status(seal, text, "a", "n"), 400);
  EXPECT_EQ(opening_status(seal, text, "am", ""), 400) << "owner and hash are separate";
  EXPECT_EQ(opening_status(StateSeal(), text), 400);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    EXPECT_EQ(opening_status(seal, changed), 400) << i;
    EXPECT_EQ(opening_status(seal, text.substr(0, i)), 400) << i;
  }
  // The flag that the state was uploaded is authenticated, too.
  std::string bytes;
  ASSERT_TRUE(decode_base64(text, bytes));
  bytes[4] = 1;
  EXPECT_EQ(opening_status(seal, encode_base64(bytes)), 400);
}

TEST(Seal, ReadsItsKeyFromAFile) {
  const TemporaryFolder folder;
  const std::string hex(64, 'a'), path = folder.file("key");
  write_file_atomic(path, hex + "\n");
  const StateSeal from_hex(path);
  write_file_atomic(path, std::string(32, '\xaa'));
  EXPECT_EQ(opening_status(StateSeal(path), from_hex.seal({"content"}, "a", "m")), 0) << "the same key";
  for (const std::string& wrong : {std::string(), std::string(63, 'a'), std::string(64, 'g'), hex + hex}) {
    write_file_atomic(path, wrong);
    EXPECT_NE(message_of<UsageError>([&] { const StateSeal refused(path); }).find(path), std::string::npos) << wrong;
  }
}

TEST(Base64, HasTheVectorsOfRfc4648) {
  const std::vector<std::pair<std::string, std::string>> vectors = {
      {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"fooba", "Zm9vYmE="}, {"foobar", "Zm9vYmFy"}};
  std::string bytes;
  for (const auto& [plain, coded] : vectors) {
    EXPECT_EQ(encode_base64(plain), coded);
    ASSERT_TRUE(decode_base64(coded, bytes)) << coded;
    EXPECT_EQ(bytes, plain);
  }
  for (const char* wrong : {"Zg", "Zg=", "Zg= =", "Z===", "Zm9v\n", "Zm-_", " Zm9v", "Zg==Zg=="})
    EXPECT_FALSE(decode_base64(wrong, bytes)) << wrong;
}

TEST(RandomIds, Differ) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) ids.insert(random_hex(16));
  EXPECT_EQ(ids.size(), 100u);
  EXPECT_EQ(ids.begin()->size(), 32u);
}

}  // namespace seal_test
}  // namespace based
