// Rows in ATen: packed ones, of which consecutive rows of equal length are handled together, as one batch; and those of a state.
#pragma once
#include <cstdint>
#include <vector>

#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

// `rows` rows of `length` tokens each, from row `first_row` and token `first_token` on; in the other offsets, where given, likewise.
struct Run {
  int64_t first_row = 0, rows = 0;
  int64_t first_token = 0, length = 0;
  int64_t other_first_token = 0, other_length = 0;
};

// The fewest runs that cover all rows in order. `other` are offsets of the same rows in another packing (keys, history), or empty.
std::vector<Run> equal_runs(const std::vector<int64_t>& starts, const std::vector<int64_t>& other = {});

// The rows of a run, each by itself.
std::vector<Run> single_rows(const Run& run);

// [rows, length, …], the tokens of a run of packed [tokens, …].
Tensor tokens_of(const Tensor& packed, const Run& run);
Tensor other_tokens_of(const Tensor& packed, const Run& run);

// Pieces of the runs one after another along dimension 0; zeros of `sizes` where there are none.
Tensor join(const std::vector<Tensor>& pieces, at::IntArrayRef sizes, const at::TensorOptions& options);

// whole[index[i]] = values[i], cast to the type of `whole`: that is replaced where gradients are on, so that the old one stays valid for
// the backward, and written in place where they are off.
void write_rows(Tensor& whole, const Tensor& index, const Tensor& values);

}  // namespace based::ops
