// Random numbers that depend only on (seed, stream, position), and not on platform, threads or standard library. The generator is
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), a bijection of a counter: it can seek to any
// position in constant time.
#pragma once
#include <array>
#include <cstdint>

namespace based {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The streams of one seed are independent. Each purpose (weights, data, dropout) and each worker should have its own.
class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  uint32_t next32();                           // one word
  uint64_t next64();                           // two words, the lower half first
  double uniform();                            // [0, 1), 53 bits, two words
  double normal();                             // mean 0, variance 1, two words
  uint64_t below(uint64_t bound);              // 0 … bound-1 without bias, two words or, rarely, more; bound > 0
  int64_t between(int64_t low, int64_t high);  // low … high, both included

  uint64_t seed() const { return seed_; }
  uint64_t stream() const { return stream_; }
  uint64_t position() const { return position_; }  // words drawn; seed, stream and position are the complete state
  void seek(uint64_t position) { position_ = position; }

 private:
  uint64_t seed_, stream_;
  uint64_t position_ = 0;
  uint64_t block_index_ = UINT64_MAX;  // index of block_; UINT64_MAX: none yet (positions are below 2^64, so no block has this index)
  std::array<uint32_t, 4> block_{};
};

}  // namespace based
