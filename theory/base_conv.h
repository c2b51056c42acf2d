// BaseConv as defined in the paper's appendix: y = (uW + B₁) ⊙ (h ∗ u + B₂) on N' × d' matrices, with biases for each row and a filter for
// each column. Only non-zero entries are stored, so that layers of many rows are cheap to build, count and run.
#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "based/core/error.h"
#include "theory/matrix.h"

namespace based::theory {

inline constexpr int64_t kAll = INT64_MAX / 4;  // all rows or columns of a matrix

struct WeightEntry {  // W[input, output]: the weight from column `input` of u to column `output` of uW
  int64_t input, output, value = 1;
};

struct Patch {  // `value` in every cell of a rectangle of a bias. The patches of one bias do not overlap.
  int64_t row, rows, column, columns, value = 1;
};

// `value` at `length` consecutive offsets, from `offset` on, of the filters of some columns: adds value · u[i - offset] to row i of h ∗ u.
// Offsets may be negative, which moves rows up. Rows outside of the N' rows are zero.
struct Tap {
  int64_t offset, length = 1, value = 1, column = 0, columns = kAll;
};

struct Layer {
  std::string what;  // a description for readers
  std::vector<WeightEntry> weight;
  std::vector<Patch> gate_bias, filter_bias;  // B₁, B₂
  std::vector<Tap> filter;

  int64_t reach_down() const;  // the largest number of rows that a row is moved down, at least 0
  int64_t reach_up() const;    // the same upwards
  bool causal() const { return reach_up() == 0; }
};

// Layers for an input of size `outer` (N × d), embedded at the top left of a matrix of size `inner` (N' × d'). The other rows and columns
// are workspace.
struct Program {
  Size outer, inner;
  std::vector<Layer> layers;

  int64_t depth() const { return static_cast<int64_t>(layers.size()); }  // L
  int64_t parameters() const;                                            // non-zero entries of W, B₁, B₂ and h
  int64_t all_parameters() const;                                        // all entries of W, B₁, B₂ and h
  std::string tuple() const;                                             // (N, L, d, N', d')
  void append(std::vector<Layer> more);
};

// The number of non-zero entries of `layer` for a matrix of size `inner`, N' × d'.
int64_t parameters_of(const Layer& layer, Size inner);

namespace detail {

// Sliding sums over consecutive rows of one column, computed from the top down. Zeros cost nothing. A sum is recomputed only when a row
// leaves it, so that the arithmetic needs no subtraction.
template <class Arithmetic>
class ColumnWindow {
 public:
  using Value = typename Arithmetic::Value;
  ColumnWindow(const Matrix<Value>& u, int64_t column) : u_(&u), column_(column) {
    for (int64_t i = 0; i < u.size.rows; ++i)
      if (u.at(i, column) != Value()) rows_.push_back(i);
  }
  bool empty() const { return rows_.empty(); }
  // The sum of rows first … last. Neither may be less than in the previous call.
  Value sum(int64_t first, int64_t last, Arithmetic& arithmetic) {
    if (begin_ < rows_.size() && rows_[begin_] < first) {
      while (begin_ < rows_.size() && rows_[begin_] < first) ++begin_;
      end_ = begin_;
      sum_ = Value();
    }
    for (; end_ < rows_.size() && rows_[end_] <= last; ++end_) sum_ = arithmetic.sum(sum_, u_->at(rows_[end_], column_));
    return sum_;
  }

 private:
  const Matrix<Value>* u_;
  int64_t column_;
  std::vector<int64_t> rows_;
  size_t begin_ = 0, end_ = 0;
  Value sum_ = Value();
};

template <class Arithmetic>
void add_patches(const std::vector<Patch>& patches, Matrix<typename Arithmetic::Value>& to, Arithmetic& arithmetic) {
  for (const Patch& patch : patches) {
    const auto value = arithmetic.constant(patch.value);
    for (int64_t i = patch.row; i < std::min(patch.row + patch.rows, to.size.rows); ++i)
      for (int64_t j = patch.column; j < std::min(patch.column + patch.columns, to.size.columns); ++j) to.at(i, j) = value;
  }
}

template <class Arithmetic>
void add_product(const Matrix<typename Arithmetic::Value>& u, std::vector<WeightEntry> weight, Matrix<typename Arithmetic::Value>& to,
                 Arithmetic& arithmetic) {
  using Value = typename Arithmetic::Value;
  std::stable_sort(weight.begin(), weight.end(), [](const WeightEntry& a, const WeightEntry& b) { return a.input < b.input; });
  std::vector<size_t> begins(static_cast<size_t>(u.size.columns) + 1);
  for (const WeightEntry& entry : weight) ++begins[static_cast<size_t>(entry.input) + 1];
  for (size_t k = 1; k < begins.size(); ++k) begins[k] += begins[k - 1];
  for (int64_t i = 0; i < u.size.rows && !weight.empty(); ++i) {
    const Value* from = u.row(i);
    Value* row = to.row(i);
    for (int64_t k = 0; k < u.size.columns; ++k) {
      if (from[k] == Value()) continue;
      for (size_t at = begins[static_cast<size_t>(k)]; at < begins[static_cast<size_t>(k) + 1]; ++at) {
        const Value term = weight[at].value == 1 ? from[k] : arithmetic.product(arithmetic.constant(weight[at].value), from[k]);
        row[weight[at].output] = arithmetic.sum(row[weight[at].output], term);
      }
    }
  }
}

// Adds a tap's contribution to h ∗ u to `to`, only in cells where the gate is not zero.
template <class Arithmetic>
void add_tap(const Tap& tap, const Matrix<typename Arithmetic::Value>& u, const Matrix<typename Arithmetic::Value>& gate,
             Matrix<typename Arithmetic::Value>& to, Arithmetic& arithmetic) {
  using Value = typename Arithmetic::Value;
  const auto [rows, columns] = u.size;
  const int64_t end = std::min(columns, tap.column + std::min(tap.columns, columns));
  const auto add = [&](Value& cell, Value term) {
    cell = arithmetic.sum(cell, tap.value == 1 ? term : arithmetic.product(arithmetic.constant(tap.value), term));
  };
  if (tap.length == 1) {
    for (int64_t i = std::max<int64_t>(0, tap.offset); i < std::min(rows, rows + tap.offset); ++i) {
      const Value* from = u.row(i - tap.offset);
      const Value* open = gate.row(i);
      for (int64_t j = tap.column; j < end; ++j)
        if (open[j] != Value() && from[j] != Value()) add(to.at(i, j), from[j]);
    }
    return;
  }
  for (int64_t j = tap.column; j < end; ++j) {
    ColumnWindow<Arithmetic> window(u, j);
    for (int64_t i = 0; i < rows && !window.empty(); ++i)
      if (gate.at(i, j) != Value()) add(to.at(i, j), window.sum(i - tap.offset - tap.length + 1, i - tap.offset, arithmetic));
  }
}

}  // namespace detail

template <class Arithmetic>
Matrix<typename Arithmetic::Value> apply(const Layer& layer, const Matrix<typename Arithmetic::Value>& u, Arithmetic& arithmetic) {
  using Value = typename Arithmetic::Value;
  Matrix<Value> gate(u.size), y(u.size);
  detail::add_patches(layer.gate_bias, gate, arithmetic);
  detail::add_product(u, layer.weight, gate, arithmetic);
  detail::add_patches(layer.filter_bias, y, arithmetic);
  for (const Tap& tap : layer.filter) detail::add_tap(tap, u, gate, y, arithmetic);
  for (size_t at = 0; at < y.cells.size(); ++at)
    y.cells[at] = gate.cells[at] == Value() || y.cells[at] == Value() ? Value() : arithmetic.product(gate.cells[at], y.cells[at]);
  return y;
}

// Runs the program and returns the N' × d' matrix after the last layer. `seen` is called with the output of each layer.
template <class Arithmetic>
Matrix<typename Arithmetic::Value> run(const Program& program, const Matrix<typename Arithmetic::Value>& input, Arithmetic& arithmetic,
                                       const std::function<void(const Layer&, const Matrix<typename Arithmetic::Value>&)>& seen = {}) {
  BASED_ASSERT(input.size == program.outer);
  auto u = corner(input, program.inner);
  for (const Layer& layer : program.layers) {
    u = apply(layer, u, arithmetic);
    if (seen) seen(layer, u);
  }
  return u;
}

IntMatrix run(const Program& program, const IntMatrix& input);  // over the integers

}  // namespace based::theory
