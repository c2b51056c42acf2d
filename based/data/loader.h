// Batches of token windows. The windows of a batch depend only on the seed and on the number of windows delivered before: not on the number
// of devices, workers or threads, nor on where a run was stopped and resumed.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "based/data/labels.h"
#include "based/data/shards.h"

namespace based {

// A permutation of 0 .. size-1 that needs no memory: a Feistel network with Philox as its round function, iterated until the result is in
// range.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed, uint64_t stream);
  uint64_t operator()(uint64_t index) const;  // index < size

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
    field("length", length, "tokens per window");
    field("batch", batch, "windows per batch, over all devices");
    field("seed", seed, "seed of the order");
    field("shuffle", shuffle, "a new order of the windows each epoch; otherwise the order of the data");
    field("documents", documents, "separate documents: cu_seqlens cuts at their ends and no target crosses one");
  }
};

struct TokenBatch {
  int64_t rows = 0, length = 0;
  std::vector<int32_t> tokens;   // [rows, length]
  std::vector<int32_t> targets;  // [rows, length]: the next token, or kNoLabel if it belongs to another document (LoaderConfig::documents)
  std::vector<int64_t> cu_seqlens;  // sequences in the rows·length tokens: one per row, or one per document if documents are separate
  std::vector<int64_t> windows;     // [rows]: window w starts at token w·length; for messages about a batch
};

// The loader's part of a checkpoint.
struct LoaderPosition {
  int64_t window = 0;  // windows delivered, over all devices and epochs

  template <class Visitor>
  void visit(Visitor&& field) {
    field("window", window, "windows delivered, over all devices and epochs");
  }
};

// Cuts the data into windows() = (tokens - 1) / length consecutive windows; the remaining tokens at the end are never used. Each epoch
// delivers every window once. A batch may span two epochs.
class Loader {
 public:
  // Device `rank` of `world` gets batch/world rows, from row rank·batch/world on. Throws UsageError if `world` does not divide the batch or
  // a field is out of range, and Error if the data set is shorter than one window.
  Loader(std::shared_ptr<const TokenDataset> data, const LoaderConfig& config, int64_t rank = 0, int64_t world = 1);

  TokenBatch next();                                   // this device's part of the next batch
  TokenBatch batch_at(LoaderPosition position) const;  // this device's part of the batch at any position; thread-safe

  LoaderPosition position() const { return position_; }
  void seek(LoaderPosition position);  // throws Error for a negative position
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
