// The division of a batch of tokens into rows (sequences). Activations are always [tokens, channels], with the rows concatenated. An
// equal-length batch is the special case of rows with equal lengths. Rows may be empty.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "based/runtime/torch.h"

namespace based {

using torch::Tensor;

class Sequences {
 public:
  // `rows` rows of `length` tokens each.
  static Sequences equal(int64_t rows, int64_t length, torch::Device device = torch::kCPU);
  // cu_seqlens has rows + 1 entries, 0 ≤ … ≤ tokens. Throws Error if it does not start at 0, decreases, or does not end at `tokens`.
  static Sequences packed(std::vector<int64_t> cu_seqlens, int64_t tokens, torch::Device device = torch::kCPU);

  int64_t rows() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t tokens() const { return starts_.back(); }
  int64_t length(int64_t row) const { return starts_[row + 1] - starts_[row]; }
  int64_t max_length() const { return max_length_; }
  bool equal_length() const { return equal_length_; }
  const std::vector<int64_t>& starts() const { return starts_; }
  const Tensor& cu_seqlens() const { return cu_seqlens_; }  // int64 [rows + 1], on the device
  // int64 [tokens]: the position of each token in its row, counted from first_position[row] (int64 [rows]), or from 0 if that is undefined.
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
  std::shared_ptr<FromZero> from_zero_ = std::make_shared<FromZero>();  // shared by all copies
};

// The state slot of each sequence: int64 [rows], no slot twice.
using Slots = Tensor;

}  // namespace based
