// xxHash: checksums that detect damage, not tampering.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace based {

std::string hex(uint64_t value);  // 16 digits

struct Hash128 {
  uint64_t high = 0, low = 0;

  bool operator==(const Hash128&) const = default;
  std::string hex() const;  // 32 digits, high part first, as xxhsum prints it
};

uint64_t xxh64(std::span<const std::byte> bytes);  // XXH64, the older function, with seed 0
uint64_t xxh3_64(std::span<const std::byte> bytes);
Hash128 xxh3_128(std::span<const std::byte> bytes);
Hash128 xxh3_128_file(const std::string& path);  // throws Error

// Hashes data in pieces. The digest equals xxh3_128 of the concatenated pieces.
class Hasher128 {
 public:
  Hasher128();
  ~Hasher128();
  Hasher128(const Hasher128&) = delete;
  Hasher128& operator=(const Hasher128&) = delete;

  void update(std::span<const std::byte> bytes);
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace based
