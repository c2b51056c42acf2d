#include "based/ops/framework/rows.h"

namespace based::ops {

std::vector<Run> equal_runs(const std::vector<int64_t>& starts, const std::vector<int64_t>& other) {
  std::vector<Run> runs;
  for (size_t row = 0; row + 1 < starts.size(); ++row) {
    Run next{static_cast<int64_t>(row), 1, starts[row], starts[row + 1] - starts[row], 0, 0};
    if (!other.empty()) {
      next.other_first_token = other[row];
      next.other_length = other[row + 1] - other[row];
    }
    if (!runs.empty() && runs.back().length == next.length && runs.back().other_length == next.other_length)
      ++runs.back().rows;
    else
      runs.push_back(next);
  }
  return runs;
}

std::vector<Run> single_rows(const Run& run) {
  std::vector<Run> rows;
  for (int64_t i = 0; i < run.rows; ++i)
    rows.push_back({run.first_row + i, 1, run.first_token + i * run.length, run.length, run.other_first_token + i * run.other_length,
                    run.other_length});
  return rows;
}

namespace {

Tensor batch(const Tensor& packed, int64_t first, int64_t rows, int64_t length) {
  std::vector<int64_t> sizes = packed.sizes().vec();
  sizes[0] = length;
  sizes.insert(sizes.begin(), rows);
  return packed.narrow(0, first, rows * length).reshape(sizes);
}

}  // namespace

Tensor tokens_of(const Tensor& packed, const Run& run) { return batch(packed, run.first_token, run.rows, run.length); }

Tensor other_tokens_of(const Tensor& packed, const Run& run) { return batch(packed, run.other_first_token, run.rows, run.other_length); }

Tensor join(const std::vector<Tensor>& pieces, at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (pieces.empty()) return at::zeros(sizes, options);
  return pieces.size() == 1 ? pieces[0] : at::cat(pieces, 0);
}

void write_rows(Tensor& whole, const Tensor& index, const Tensor& values) {
  const Tensor cast = values.to(whole.scalar_type());
  if (at::GradMode::is_enabled()) {
    whole = whole.index_copy(0, index, cast);
  } else {
    whole.index_copy_(0, index, cast);
  }
}

}  // namespace based::ops
