#include "based/serve/http/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "based/core/files.h"
#include "based/core/text.h"

namespace based {
namespace {

constexpr size_t kLeastKeyBytes = 8, kOwnerBytes = 16;

std::string key_digest(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  BASED_ASSERT(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1);
  return {reinterpret_cast<const char*>(digest.data()), size};
}

}  // namespace

ApiKeys::ApiKeys(const std::string& path) {
  const std::string content = read_file(path, uint64_t{1} << 20U);
  std::string_view rest = content;
  for (int64_t line = 1; !rest.empty(); ++line) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view key = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (key.ends_with('\r')) key.remove_suffix(1);
    if (key.empty() || key.front() == '#') continue;
    const std::string where = path + ":" + std::to_string(line) + ": ";
    if (!std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c <= '~'; }))
      throw Error(where + "a key has visible ASCII characters only, without spaces");
    if (key.size() < kLeastKeyBytes) throw Error(where + "a key needs at least " + std::to_string(kLeastKeyBytes) + " characters");
    Key added{key_digest(key), hex_digits(key_digest("owner:" + std::string(key))).substr(0, 2 * kOwnerBytes)};
    if (std::any_of(keys_.begin(), keys_.end(), [&](const Key& one) { return one.digest == added.digest; }))
      throw Error(where + "the same key as on an earlier line");
    keys_.push_back(std::move(added));
  }
  if (keys_.empty()) throw Error(path + ": has no key; write one key a line");
}

std::optional<std::string> ApiKeys::owner(std::string_view key) const {
  if (keys_.empty()) return "";
  const std::string digest = key_digest(key);
  const Key* found = nullptr;
  for (const Key& one : keys_)
    if (CRYPTO_memcmp(one.digest.data(), digest.data(), digest.size()) == 0) found = &one;
  if (found == nullptr) return {};
  return found->owner;
}

}  // namespace based
