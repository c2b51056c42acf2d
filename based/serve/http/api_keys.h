// The keys that clients must present.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace based {

class ApiKeys {
 public:
  ApiKeys() = default;  // none: every request is accepted
  // Reads a file with one key a line; empty lines and lines that begin with '#' are skipped. Throws Error naming the file and the line for
  // a key with characters other than visible ASCII, for one of fewer than 8 characters, for a duplicate, and for a file without a key.
  explicit ApiKeys(const std::string& path);

  bool empty() const { return keys_.empty(); }
  // The owner of a key: a hash of it, so that states survive a change of the file's order. Nothing for an unknown key. The time does not
  // depend on how much of a key is right. Without keys, any key's owner is "".
  std::optional<std::string> owner(std::string_view key) const;

 private:
  struct Key {
    std::string digest;  // SHA-256, 32 bytes
    std::string owner;
  };
  std::vector<Key> keys_;
};

}  // namespace based
