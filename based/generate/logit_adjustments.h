// The biases, counts and penalties of the slots whose next tokens are drawn from adjusted logits (kernels/sampling/adjusted_logits.h), on
// the model's device. Memory is allocated when the first slot needs it: 4 bytes · vocab_size for the biases of each slot, and as much for
// the counts.
#pragma once
#include <span>
#include <vector>

#include "based/generate/sampler.h"
#include "based/ops/sampling/sample.h"

namespace based {

class LogitAdjustments {
 public:
  LogitAdjustments(int64_t slots, int64_t vocab_size, torch::Device device);

  // Loads the slot's options and counts its generated tokens, in place of those of the slot's last sequence.
  void set(int64_t slot, const SamplingOptions& sampling, std::span<const int64_t> generated);
  // Until the next set() or allow(), the slot's tokens are drawn from these; see AllowedTokens. Returns false, and changes nothing, if none
  // is allowed.
  bool allow(int64_t slot, std::span<const uint64_t> allowed);
  // Whether the slot's tokens are drawn from adjusted logits.
  bool adjusts(int64_t slot) const { return rows_[static_cast<size_t>(slot)].adjusts; }

  // logits [n, vocab_size] of these slots -> adjusted logits, fp32. `penalty`, of repetition, and `seen` have a row for each of the slots;
  // see ops::SampleOptions.
  at::Tensor adjusted(const at::Tensor& logits, const at::Tensor& slots, const at::Tensor& penalty, const at::Tensor& seen) const;
  // Counts a drawn token of each of these slots; −1 is no token.
  void count(const at::Tensor& slots, const at::Tensor& tokens);

 private:
  struct Row {
    bool adjusts = false;
    bool has_counts = false, has_biases = false;  // the slot's row on the device is not zero
    std::vector<std::pair<int64_t, double>> logit_bias = {};
  };
  at::Tensor& allocated(at::Tensor& all, at::ScalarType type) const;
  void load_counts(int64_t slot, const SamplingOptions& sampling, std::span<const int64_t> generated);
  void load_biases(int64_t slot, std::vector<float> first);

  int64_t vocab_size_;
  torch::Device device_;
  std::vector<Row> rows_;
  at::Tensor penalties_;  // fp32 [2, slots]: presence and frequency; undefined, like the others, until a slot needs it
  at::Tensor counts_;     // int32 [slots, vocab_size]: how often each token has been generated
  at::Tensor biases_;     // fp32 [slots, vocab_size]
};

}  // namespace based
