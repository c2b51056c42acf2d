// Rows in ATen: packed rows, of which consecutive ones of equal length form one batch, and rows of a state.
#pragma once
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "based/runtime/torch.h"

namespace based::ops {

using torch::Tensor;

// `rows` rows of `length` tokens each, from row `first_row` and token `first_token` on. In the other packing, where given, the same rows
// have `other_length` tokens each, from token `other_first_token` on.
struct Run {
  int64_t first_row = 0, rows = 0;
  int64_t first_token = 0, length = 0;
  int64_t other_first_token = 0, other_length = 0;
};

// The fewest runs that cover all rows in order. `other` are offsets of the same rows in another packing (keys, history), or empty.
std::vector<Run> equal_runs(const std::vector<int64_t>& starts, const std::vector<int64_t>& other = {});

// The rows of a run, each as a run of one row.
std::vector<Run> single_rows(const Run& run);

// [rows, length, …], the tokens of a run of packed [tokens, …].
Tensor tokens_of(const Tensor& packed, const Run& run);
Tensor other_tokens_of(const Tensor& packed, const Run& run);

// The pieces concatenated along dimension 0; zeros of `sizes` where there are none.
Tensor join(const std::vector<Tensor>& pieces, at::IntArrayRef sizes, const at::TensorOptions& options);

// whole[index[i]] = values[i], cast to the type of `whole`. Where gradients are on, `whole` is replaced, because the backward may need the
// old tensor. Where they are off, it is written in place.
void write_rows(Tensor& whole, const Tensor& index, const Tensor& values);

// A prefill of states whose rows are at `slots`: forward(first state of the rows, …), with a tensor for each of `states`, returns y and the
// last states, in the same order. Writes the last states back in place and returns y.
template <class Forward, class... States>
Tensor prefill_slots(const Tensor& slots, const Forward& forward, const States&... states) {
  const auto results = forward(states.index_select(0, slots)...);
  const auto write = [&]<size_t... kState>(std::index_sequence<kState...>) {
    (states.index_copy_(0, slots, std::get<kState + 1>(results)), ...);
  };
  write(std::index_sequence_for<States...>());
  return std::get<0>(results);
}

// The same with a gradient: where gradients are on, the states are replaced (write_rows).
template <class Forward, class... States>
Tensor prefill_slots_with_gradient(const Tensor& slots, const Forward& forward, States&... states) {
  const auto results = forward(states.index_select(0, slots)...);
  const auto write = [&]<size_t... kState>(std::index_sequence<kState...>) {
    (write_rows(states, slots, std::get<kState + 1>(results)), ...);
  };
  write(std::index_sequence_for<States...>());
  return std::get<0>(results);
}

}  // namespace based::ops
