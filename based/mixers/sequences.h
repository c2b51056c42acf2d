// Which tokens belong together. Activations are always [tokens, channels], rows one after another; an equal-length batch is the case of
// equal rows. Rows may be empty.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "based/ops/torch.h"

namespace based {

using torch::Tensor;

class Sequences {
 public:
  // rows x length tokens.
  static Sequences equal(int64_t rows, int64_t length, torch::Device device = torch::kCPU);
  // cu_seqlens = 0 ≤ … ≤ tokens, one more than rows. Throws Error where it does not start at 0, decreases or does not end at `tokens`.
  static Sequences packed(std::vector<int64_t> cu_seqlens, int64_t tokens, torch::Device device = torch::kCPU);

  int64_t rows() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t tokens() const { return starts_.back(); }
  int64_t length(int64_t row) const { return starts_[row + 1] - starts_[row]; }
  int64_t max_length() const { return max_length_; }
  bool equal_length() const { return equal_length_; }
  const std::vector<int64_t>& starts() const { return starts_; }
  const Tensor& cu_seqlens() const { return cu_seqlens_; }  // int64 [rows + 1], on the device
  // int64 [tokens]: position of each token in its row, counted from first_position[row] (int64 [rows]) or from 0 where undefined.
  Tensor positions(const Tensor& first_position = {}) const;

 private:
  Sequences(std::vector<int64_t> starts, torch::Device device);
  Tensor make_positions(const Tensor& first_position) const;
  std::vector<int64_t> starts_;
  int64_t max_length_ = 0;
  bool equal_length_ = true;
  Tensor cu_seqlens_;
  struct FromZero {
    std::once_flag made;
    Tensor positions;
  };
  std::shared_ptr<FromZero> from_zero_ = std::make_shared<FromZero>();  // of all copies
};

// Rows of a state, one for each sequence: int64 [rows], none twice.
using Slots = Tensor;

}  // namespace based
