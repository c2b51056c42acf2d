#include "based/mixers/kit/sequences.h"

#include <algorithm>
#include <string>
#include <utility>

#include "based/core/error.h"
#include "based/runtime/transfer.h"

namespace based {

Sequences::Sequences(std::vector<int64_t> starts, torch::Device device) : starts_(std::move(starts)) {
  for (int64_t row = 0; row < rows(); ++row) {
    max_length_ = std::max(max_length_, length(row));
    equal_length_ = equal_length_ && length(row) == length(0);
  }
  cu_seqlens_ = runtime::to_device(torch::tensor(starts_, torch::kInt64), device);
}

Sequences Sequences::equal(int64_t rows, int64_t length, torch::Device device) {
  if (rows < 0 || length < 0) {
    throw Error("sequences: rows and length must not be negative, got " + std::to_string(rows) + " and " + std::to_string(length));
  }
  std::vector<int64_t> starts(static_cast<size_t>(rows) + 1);
  for (int64_t row = 0; row <= rows; ++row) starts[row] = row * length;
  return Sequences(std::move(starts), device);
}

Sequences Sequences::packed(std::vector<int64_t> cu_seqlens, int64_t tokens, torch::Device device) {
  if (cu_seqlens.empty()) throw Error("cu_seqlens: needs rows + 1 entries, got none");
  if (cu_seqlens.front() != 0) throw Error("cu_seqlens: must start at 0, got " + std::to_string(cu_seqlens.front()));
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] < cu_seqlens[i - 1]) {
      throw Error("cu_seqlens: must not decrease, but entry " + std::to_string(i) + " is " + std::to_string(cu_seqlens[i]) + " after " +
                  std::to_string(cu_seqlens[i - 1]));
    }
  }
  if (cu_seqlens.back() != tokens) {
    throw Error("cu_seqlens: must end at the number of tokens, " + std::to_string(tokens) + ", got " + std::to_string(cu_seqlens.back()));
  }
  return Sequences(std::move(cu_seqlens), device);
}

Tensor Sequences::positions(const Tensor& first_position) const {
  if (!first_position.defined()) {
    std::call_once(from_zero_->made, [this] {
      const torch::InferenceMode none(false);  // training may follow
      from_zero_->positions = make_positions({});
    });
    return from_zero_->positions;
  }
  return make_positions(first_position);
}

Tensor Sequences::make_positions(const Tensor& first_position) const {
  const Tensor starts = cu_seqlens_.narrow(0, 0, rows());
  const Tensor lengths = cu_seqlens_.narrow(0, 1, rows()) - starts;
  const Tensor offset = first_position.defined() ? first_position - starts : -starts;
  return torch::arange(tokens(), cu_seqlens_.options()) + torch::repeat_interleave(offset, lengths, /*dim=*/0, tokens());
}

}  // namespace based
