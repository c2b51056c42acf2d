// Batches of token windows. The windows of a batch depend only on the seed and on the position in the order of delivery: not on the number
// of devices, workers or threads, nor on where a run was stopped and resumed.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "based/data/labels.h"
#include "based/data/mixture.h"

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
  bool rows = false;
  double reverse_complement = 0;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("length", length, "tokens per window");
    field("batch", batch, "windows per batch, over all devices");
    field("seed", seed, "seed of the order");
    field("shuffle", shuffle, "a new order of the windows each epoch; otherwise the order of the data");
    field("documents", documents, "separate documents: cu_seqlens cuts at their ends and no target crosses one");
    field("rows", rows,
          "a window is a document of length + 1 tokens, as `based dna rows` packs them; otherwise windows overlap by a token");
    field("reverse_complement", reverse_complement, "DNA: chance that a window is delivered as its reverse complement");
  }
};

struct TokenBatch {
  int64_t rows = 0, length = 0;
  std::vector<int32_t> tokens;  // [rows, length]
  std::vector<int32_t>
      targets;  // [rows, length]: the next token, or kNoLabel if it is in another document (LoaderConfig::documents) or is [PAD] of DNA
  std::vector<int64_t> cu_seqlens;  // sequences in the rows·length tokens: one per row, or one per document if documents are separate
  std::vector<int64_t> windows;     // [rows]: window w of the first set starts at token w·length; the windows of further sets are numbered
                                    // after those of the sets before; for messages about a batch
};

// The loader's part of a checkpoint. It does not depend on the number of devices.
struct LoaderPosition {
  int64_t window = 0;           // places of the order of delivery that were passed, over all devices and epochs
  std::string order_hash = {};  // Loader::order_hash() there; empty if it is not known

  template <class Visitor>
  void visit(Visitor&& field) {
    field("window", window, "windows delivered or skipped, over all devices and epochs");
    field("order_hash", order_hash, "hash over the data sets and the numbers of all windows delivered");
  }
};

// The places first … last - 1 of the order of delivery.
struct WindowRange {
  int64_t first = 0, last = 0;
};

// Cuts each set into (tokens - 1) / length consecutive windows, or with LoaderConfig::rows takes its documents; the remaining tokens at the
// end are never used. The order of delivery
// assigns its places to the sets by their weights (mixture.h), and each set delivers every window once in each of its epochs, in an order
// that depends on the seed, the epoch and the set. A batch may span two epochs.
//
// Sets of the DNA tokenizer: N is delivered as [PAD], and a target of [PAD] has no label. Whether a window is reversed depends on the seed,
// the window and the epoch alone.
class Loader {
 public:
  // Device `rank` of `world` gets batch/world rows, from row rank·batch/world on. Throws UsageError if `world` does not divide the batch or
  // a field is out of range, and Error if a set is shorter than one window.
  Loader(std::shared_ptr<const TokenDataset> data, const LoaderConfig& config, int64_t rank = 0, int64_t world = 1);
  Loader(std::shared_ptr<const TokenMixture> data, const LoaderConfig& config, int64_t rank = 0, int64_t world = 1);

  // The batches leave out these places of the order, and the windows there are not delivered in this epoch. Batches stay whole: later
  // windows fill them. A place counts in positions whether or not it is skipped, so a position means the same place with and without the
  // ranges. Replaces earlier ranges. Throws UsageError for a range that is negative or empty.
  void skip(std::vector<WindowRange> ranges);

  TokenBatch next();                                          // this device's part of the next batch
  TokenBatch batch_at(const LoaderPosition& position) const;  // this device's part of the batch at any position; thread-safe

  // The labels (targets other than kNoLabel) of the next `batches` batches from a position on, over all devices. Reads tokens of
  // DNA only. Thread-safe.
  int64_t step_labels(const LoaderPosition& position, int64_t batches = 1) const;

  // The numbers of the windows of the next `batches` batches from a position on, over all devices. Reads no tokens. Thread-safe.
  std::vector<int64_t> step_windows(const LoaderPosition& position, int64_t batches = 1) const;

  LoaderPosition position() const;
  // Throws Error for a negative position or a malformed hash. Without a hash, it is computed from the order up to the position.
  void seek(const LoaderPosition& position);

  // 16 hexadecimal digits: a hash over the sets, the window length and the number of every window delivered so far on all devices, in
  // order. Equal for any number of devices, and continued by a resumed run. Two runs with equal hashes were given the same tokens in the
  // same order.
  std::string order_hash() const;

  int64_t windows() const { return first_window_.back(); }  // the sum over all sets
  double epoch() const { return static_cast<double>(window_) / static_cast<double>(windows()); }

 private:
  std::vector<int64_t> places_from(int64_t first) const;  // [batch]: the next places that are not skipped
  struct Delivery {
    int64_t window = 0;  // the number of a window, as in TokenBatch::windows
    uint64_t epoch = 0;  // the epoch of the window's set
  };
  Delivery delivery_at(int64_t place) const;
  struct Window {
    const TokenDataset* data;
    int64_t first;  // its first token
  };
  Window find_window(int64_t number) const;
  std::vector<int32_t> tokens_of(const Window& window, const Delivery& delivery) const;  // [length + 1]
  void append_window(const Delivery& delivery, TokenBatch& batch) const;
  int64_t labels_of(const Delivery& delivery) const;
  TokenBatch part_of(const std::vector<int64_t>& places) const;  // this device's rows of a batch
  uint64_t initial_hash() const;
  uint64_t hash_over(uint64_t hash, const std::vector<int64_t>& places) const;

  std::shared_ptr<const TokenMixture> data_;
  LoaderConfig config_;
  int64_t rank_, world_;
  bool dna_ = false;
  std::vector<int64_t> first_window_ = {0};  // the number of each set's first window, and the end
  std::vector<WindowRange> skipped_;         // ascending, without overlaps
  int64_t window_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace based
