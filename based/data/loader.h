// Batches of token windows. Which windows a batch holds depends on the seed and on how many windows were given out before, and on nothing
// else: not on the number of devices, workers or threads, nor on where a run was stopped.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "based/data/labels.h"
#include "based/data/shards.h"

namespace based {

// A permutation of 0 .. size-1 that needs no memory: a Feistel network whose round function is Philox, walked until it lands inside.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed, uint64_t stream);
  uint64_t operator()(uint64_t index) const;  // needs index < size

 private:
  uint64_t size_, seed_, stream_;
  int half_bits_ = 0;
};

struct LoaderConfig {
  int64_t length = 1024;
  int64_t batch = 8;
  int64_t seed = 0;
  bool shuffle = true;
  bool documents = false;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("length", length, "tokens a window");
    field("batch", batch, "windows a batch, over all devices");
    field("seed", seed, "seed of the order");
    field("shuffle", shuffle, "another order of the windows each epoch; otherwise the order of the text");
    field("documents", documents, "documents keep apart: cu_seqlens cuts at their ends and no target reaches over one");
  }
};

struct TokenBatch {
  int64_t rows = 0, length = 0;
  std::vector<int32_t> tokens;      // [rows, length]
  std::vector<int32_t> targets;     // [rows, length]: the token that follows; kNoLabel where another document starts there
  std::vector<int64_t> cu_seqlens;  // of the rows·length tokens: one piece a row, or one a document where documents keep apart
  std::vector<int64_t> windows;     // [rows]: window w starts at token w·length; for messages about a batch
};

// What a checkpoint keeps.
struct LoaderPosition {
  int64_t window = 0;  // windows given out, over all devices and epochs

  template <class Visitor>
  void visit(Visitor&& field) {
    field("window", window, "windows given out, over all devices and epochs");
  }
};

// The text is cut into windows(): (tokens - 1) / length pieces, one behind the other; what is left over at the end is never used. Each
// epoch gives every window once; a batch may reach from one epoch into the next.
class Loader {
 public:
  // Device `rank` of `world` gets the rows rank·batch/world and on. Throws UsageError where that does not divide or a field is out of
  // range, Error where the data set is shorter than one window.
  Loader(std::shared_ptr<const TokenDataset> data, const LoaderConfig& config, int64_t rank = 0, int64_t world = 1);

  TokenBatch next();                                   // this device's part of the next batch
  TokenBatch batch_at(LoaderPosition position) const;  // the same for any position; may be called from several threads

  LoaderPosition position() const { return position_; }
  void seek(LoaderPosition position);  // throws Error for a negative one
  int64_t windows() const { return windows_; }
  double epoch() const { return static_cast<double>(position_.window) / static_cast<double>(windows_); }

 private:
  void append_window(int64_t window, TokenBatch& batch) const;

  std::shared_ptr<const TokenDataset> data_;
  LoaderConfig config_;
  int64_t rank_, world_, windows_;
  LoaderPosition position_;
};

}  // namespace based
